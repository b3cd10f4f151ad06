"""Errors that only the command line raises, with the exit codes of BSD's `sysexits.h`."""

from __future__ import annotations

from headrace.model.errors import HeadraceError


class UsageProblem(HeadraceError):
    """The command was called with invalid arguments."""

    exit_code = 64  # EX_USAGE


class NoInput(HeadraceError):
    """A named file, module or repository doesn't exist or can't be read."""

    exit_code = 66  # EX_NOINPUT


class CantCreate(HeadraceError):
    """Something can't be created in the place that was named."""

    exit_code = 73  # EX_CANTCREAT


class Told(Exception):
    """Ends a command that only prints what it would do, see `--as-curl`."""


class Unfinished(HeadraceError):
    """The work ended early. The message says how far it got. `exit_code` is the exit code of the cause."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
