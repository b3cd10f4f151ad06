"""Prints the part of requirements.lock that an installation needs, with its hashes, for `pip install --require-hashes --no-deps -r`.

    python deploy/locked.py project embedded build     the project's dependencies, those of an extra, and what builds it
    python deploy/locked.py all -pyspark               all of it without a package
    python deploy/locked.py =pyspark                   one package

pip checks hashes only of what is listed completely, and it can't check that of the project itself.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OWN = re.compile(r"headrace\[(.+)\]")
_PINNED = re.compile(r"^(?=[a-z0-9].*==)", re.MULTILINE)


def locked() -> dict[str, str]:
    """The entries of the lock, with their hashes and comments, by the name of the package."""
    entries = _PINNED.split((ROOT / "requirements.lock").read_text(encoding="utf-8"))[1:]
    return {entry.partition("==")[0].partition("[")[0]: entry for entry in entries}


def required_by(entry: str) -> set[str]:
    """The names of the packages that need one, as the comments of its entry say."""
    return set(re.findall(r"^ +#(?: via)? +([a-z0-9][a-z0-9._-]*)(?: |$)", entry, re.MULTILINE)) - {"via"}


def closure(names: Iterable[str], entries: dict[str, str]) -> set[str]:
    """These packages with all that they need."""
    found, waiting = set[str](), set(names)
    while waiting:
        found |= waiting
        waiting = {name for name, entry in entries.items() if required_by(entry) & waiting} - found
    return found


def named(group: str, project: dict[str, Any]) -> Iterator[str]:
    """The packages that `project`, a dependency group or an extra names."""
    texts = {
        "project": project["project"]["dependencies"],
        **project["dependency-groups"],
        **project["project"]["optional-dependencies"],
    }[group]
    for text in texts:
        if own := _OWN.match(text):
            for extra in own[1].split(","):
                yield from named(extra.strip(), project)
        elif name := _NAME.match(text):
            yield re.sub(r"[-_.]+", "-", name[0]).lower()


def chosen(words: Iterable[str]) -> list[str]:
    """The entries that the words choose. Raises `KeyError` for a name that is in neither file."""
    entries, project = locked(), tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted, roots = set[str](), set[str]()
    for word in words:
        if word == "all":
            wanted |= entries.keys()
        elif word.startswith("="):
            wanted.add(word[1:])
        elif word.startswith("-"):
            wanted.remove(word[1:])
        else:
            roots |= set(named(word, project))
    return [entries[name] for name in sorted(wanted | closure(roots, entries))]


if __name__ == "__main__":
    sys.stdout.write("".join(chosen(word for argument in sys.argv[1:] for word in argument.split(","))))
