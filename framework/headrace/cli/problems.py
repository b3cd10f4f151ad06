"""What can go wrong on the command line alone, with the exit codes of BSD's `sysexits.h`."""

from __future__ import annotations

from headrace.model.errors import HeadraceError


class UsageProblem(HeadraceError):
    """The command was called in a way that it does not have."""

    exit_code = 64  # EX_USAGE


class NoInput(HeadraceError):
    """A file, a module or a repository that was named is not there, or can't be read."""

    exit_code = 66  # EX_NOINPUT


class CantCreate(HeadraceError):
    """Something can't be made where it was asked for."""

    exit_code = 73  # EX_CANTCREAT


class Told(Exception):
    """The command ends here, since it was only to be told what it would do; see `--as-curl`."""


class Unfinished(HeadraceError):
    """The work ended early; the message says how far it came. `exit_code` is that of the cause."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
