"""Runs git and reads its output. The user's git configuration doesn't change the output that we read."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from headrace.cli.errors import UnreadableInput

# Settings that would change the output, and that no option of `log` overrides.
_SETTINGS = ("log.showRoot=true", "log.diffMerges=separate", "log.showSignature=false", "core.quotePath=false")
_LOG = (
    "log", "--first-parent", "-m", "--reverse", "-z", "--raw", "--numstat", "--no-abbrev", "--no-renames", "--no-color",
    "--no-ext-diff", "--no-textconv", "--no-relative", "--ignore-submodules=none", "--submodule=short",
    "--format=commit %H %ct",
)  # fmt: skip
_BLOCK = 256 * 1024


class Repository:
    """A git repository.

    Raises:
        UnreadableInput: there is no repository at `path`, it has no commit, or git is not installed.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise UnreadableInput(f"The directory {path} does not exist. Give a git repository with --repo.")
        self._path = path
        self.name = self._name()
        self.head = self._head()

    def _name(self) -> str:
        try:
            directory = Path(self._git_output("rev-parse", "--absolute-git-dir"))
        except UnreadableInput as error:
            if "not a git repository" not in str(error):
                raise
            raise UnreadableInput(f"{self._path.resolve()} is not a git repository. Give one with --repo.") from error
        if self._git_output("rev-parse", "--is-bare-repository") == "true":
            return directory.name.removesuffix(".git") or "repository"
        return Path(self._git_output("rev-parse", "--show-toplevel")).name or "repository"

    def _head(self) -> str:
        try:
            return self._git_output("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        except UnreadableInput as error:
            raise UnreadableInput(
                f"The repository {self._path.resolve()} has no commit. Give another one with --repo."
            ) from error

    def log(self) -> Iterator[bytes]:
        """Yield the history of `head` along first parents, oldest first, as the NUL-terminated parts of git's output."""
        return self._git_parts(*_LOG, self.head, "--")

    def tree(self) -> dict[str, str]:
        """Return the files of `head`: path to object id. The id of a submodule is its commit."""
        found = {}
        for part in self._git_parts("ls-tree", "-r", "-z", "--full-tree", self.head):
            about, _, path = part.partition(b"\t")
            found[path.decode("utf-8", "surrogateescape")] = about.split()[2].decode()
        return found

    def _git_output(self, *arguments: str) -> str:
        return b"".join(self._git_blocks(*arguments)).decode("utf-8", "surrogateescape").strip("\n")

    def _git_parts(self, *arguments: str) -> Iterator[bytes]:
        rest = b""
        for block in self._git_blocks(*arguments):
            *parts, rest = (rest + block).split(b"\0")
            yield from parts

    def _git_blocks(self, *arguments: str) -> Iterator[bytes]:
        """Yield the output of git. If git fails, raises `UnreadableInput` with git's error message."""
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        command = ["git", *settings, "-C", str(self._path), *arguments]
        with tempfile.TemporaryFile() as errors, _start(command, errors) as process:
            assert process.stdout is not None
            while block := process.stdout.read(_BLOCK):
                yield block
            if process.wait() != 0:
                errors.seek(0)
                message = " ".join(errors.read().decode("utf-8", "replace").split())
                raise UnreadableInput(f"git failed: {message or f'exit code {process.returncode}'}.")


def _start(command: list[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=_environment()
        )
    except FileNotFoundError as error:
        raise UnreadableInput("git is not installed. Install it, or give a file with --history.") from error


def _environment() -> dict[str, str]:
    # Inside a hook these point to the repository of the hook. LC_ALL is set because we parse the error
    # messages.
    local = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in local}
    return {**kept, "LC_ALL": "C", "GIT_PAGER": "cat"}
