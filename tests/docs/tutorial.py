"""The tutorial as a reader follows it: its files are written, its commands run, and its outputs compared.

A `python` block is a file that its first line names. An `sh` block is run, and the `text` block after it
is its output in outline: each line must be there, in this order, and `…` stands for anything. Commands that
only look are run again until their output is as shown, as the text asks. `headrace run` stays in the first
terminal until the text says to stop it, and further `text` blocks are what that terminal shows.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.cli.processes import Commands, Running

STEP = re.compile(r"^```(\w+)\n(.*?)^```|Stop the service with Ctrl-C", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
SET_UP = ("mkdir ", "python3 -m venv", ". .venv", "pip install")
"""What the tests find done: the environment that they run in."""
LOOKS = ("headrace consumer info", "headrace consumer dead-letters ls", 'headrace pg psql -- -c "select')
TIMES = 60
"""How often a command that looks is run at most. Each takes about half a second."""


@dataclass(frozen=True)
class Block:
    """A block of code in a page, or a request to stop the service, which has no language."""

    language: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    for language, text in STEP.findall(page.read_text(encoding="utf-8")):
        yield Block(language, text)


def missing(outline: str, output: str) -> str | None:
    """Return the first line of an outline that the output lacks, or None. `…` matches anything within a line."""
    lines = iter(output.splitlines())
    for wanted in outline.splitlines():
        if not any(_pattern(wanted).search(line) for line in lines):
            return wanted
    return None


def _pattern(outline: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part.strip()) for part in outline.split("…")))


class Reader:
    """Follows a page in a directory. `service` is what runs in the first terminal."""

    def __init__(self, directory: Path, commands: Commands) -> None:
        self._directory = directory
        self._commands = commands
        self._environment = commands.environment() | {"PYTHONDONTWRITEBYTECODE": "1"}
        self.service: Running | None = None
        self.shown: list[str] = []

    def follow(self, page: Path) -> None:
        """Do what the page says, from its first block to its last. Raises AssertionError where it isn't so."""
        left = list(blocks(page))
        while left:
            block = left.pop(0)
            if not block.language:
                self.stop()
            elif block.language == "python":
                self._write(block.text)
            elif block.language == "sh":
                expected = left.pop(0).text if left and left[0].language == "text" else ""
                self._type(block.text, expected)
            else:
                self._watch(block.text)

    def _write(self, text: str) -> None:
        named = FILE.match(text)
        assert named is not None, f"a block that names no file:\n{text}"
        (self._directory / named[1]).write_text(text)

    def _type(self, text: str, expected: str) -> None:
        lines = [line for line in text.splitlines() if not line.startswith(SET_UP)]
        if lines and lines[0].startswith("headrace run"):
            self._serve(lines[0], expected)
            return
        for _ in range(TIMES):
            output = "".join(self._run(line) for line in lines)
            if missing(expected, output) is None:
                self.shown.append(output)
                return
            assert all(line.startswith(LOOKS) for line in lines), f"{text}gave:\n{output}"
        raise AssertionError(f"{text}lacks {missing(expected, output)!r}:\n{output}")

    def _serve(self, command: str, expected: str) -> None:
        assert self.service is None, "the first terminal is in use"
        self.service = self._commands(*command.split()[1:], directory=self._directory)
        if expected == "Killed\n":
            assert self.service.end() == -signal.SIGKILL, self.service.lines
            self.service = None
        else:
            self._watch(expected)

    def _watch(self, outline: str) -> None:
        assert self.service is not None
        for wanted in outline.splitlines():
            self.service.line(lambda line, wanted=wanted: _pattern(wanted).search(line) is not None)  # type: ignore[misc]

    def _run(self, command: str) -> str:
        if command.startswith("pyright ") and shutil.which("pyright") is None:
            return "0 errors, unless pyright were installed\n"
        if "PID" in command:
            assert self.service is not None
            command = command.replace("PID", _pid(self.service))
        ended = subprocess.run(
            ["bash", "-c", _with_this_python(command)], cwd=self._directory, env=self._environment,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        return ended.stdout + ended.stderr

    def stop(self) -> None:
        """Press Ctrl-C in the first terminal. The service must end in order."""
        if self.service is not None:
            self.service.send(signal.SIGINT)
            assert self.service.end() in (0, 130), self.service.lines
            self.service = None


def _pid(service: Running) -> str:
    started = [line for line in service.lines if "process started  number=1" in line]
    return started[-1].partition("pid=")[2]


def _with_this_python(command: str) -> str:
    """The commands of the environment that the tests run in, wherever that is."""
    for name, module in (("headrace", "headrace.cli.main"), ("mypy", "mypy"), ("python -m pytest", "pytest")):
        command = re.sub(rf"(^|\| ){name} ", rf"\1{sys.executable} -m {module} ", command)
    return re.sub(r"^python ", f"{sys.executable} ", command)
