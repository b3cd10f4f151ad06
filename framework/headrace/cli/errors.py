"""Errors that only the command line raises."""

from __future__ import annotations

from headrace.cli.exit_codes import CANNOT_CREATE, NO_INPUT, USAGE
from headrace.model.errors import HeadraceError


class UsageError(HeadraceError):
    """The command was called with invalid arguments."""

    exit_code = USAGE


class UnreadableInput(HeadraceError):
    """A named file, module or repository doesn't exist or can't be read."""

    exit_code = NO_INPUT


class CannotCreate(HeadraceError):
    """A file or directory can't be created."""

    exit_code = CANNOT_CREATE


class RequestPrinted(Exception):
    """Ends a command after it has printed its request, see `--as-curl`."""


class StoppedEarly(HeadraceError):
    """The command stopped early. The message says what was done. `exit_code` is the exit code of the cause."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
