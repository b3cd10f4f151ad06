"""Reads the Dockerfile of the image: its instructions, with the arguments filled in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"


class Instruction(NamedTuple):
    """An instruction, such as RUN, with its text on one line."""

    stage: int
    name: str
    text: str


def instructions() -> list[Instruction]:
    """The instructions in their order. Stages are counted from 1."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found, stage, arguments = [], 0, dict[str, str]()
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        name, _, text = line.partition(" ")
        stage += name == "FROM"
        if name == "ARG":
            argument, _, default = text.partition("=")
            arguments[argument] = default
        filled = re.sub(r"\$\{(\w+)\}", lambda one: arguments.get(one[1], one[0]), text)
        found.append(Instruction(stage, name, filled))
    return found


def copied() -> list[str]:
    """The paths that the first stage copies from the repository."""
    return [word for one in instructions() if one.name == "COPY" and one.stage == 1 for word in one.text.split()[:-1]]
