"""The entry point of `headrace`, where errors become messages and exit codes.

This module must not import the database driver, the event loop or the printer of tables. A command
imports them when it is called.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TextIO

from cyclopts import CycloptsError, UnknownCommandError

from headrace.cli.errors import RequestPrinted
from headrace.cli.exit_codes import DISK_FULL, INTERRUPTED, PIPE_CLOSED, USAGE
from headrace.cli.tree import build, installed_version
from headrace.model.errors import HeadraceError
from headrace.model.text.printing import printable, printable_lines
from headrace.runtime.stop_signals import end_by, handled_here, handled_signals

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_ended_by: signal.Signals | None = None


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. It runs a command and exits with its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_standard_streams()
    _escape_unencodable_output()
    with handled_here():
        ending = [number for number in handled_signals() if number is not signal.SIGINT]
        for number in ending:
            signal.signal(number, _interrupt)
        code = call(words)
        for number in ending:
            signal.signal(number, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # a closed terminal or pipe, to which a process of `headrace run` logged until its end
            _discard(stream)
    if _ended_by is not None:
        end_by(_ended_by)
    sys.exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM and SIGHUP like a Ctrl-C, which lets a command release what it uses, such as the embedded Postgres. Commands that
    drain replace this."""
    global _ended_by
    _ended_by = signal.Signals(number)
    handler = signal.getsignal(signal.SIGINT)
    if isinstance(handler, functools.partial):  # asyncio's, which cancels the main task
        handler(number, frame)
    else:
        raise KeyboardInterrupt


def _open_standard_streams() -> None:
    """Open the standard streams that were closed, as by `<&-`. Otherwise a socket would get the number of one, and what is
    meant for the stream, or the event loop would end the process."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            lowest = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(lowest, True)
            setattr(sys, name, open(lowest, mode))  # noqa: SIM115  # until the end of the process


def _escape_unencodable_output() -> None:
    """Print the code of a character that the locale lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def call(arguments: list[str]) -> int:
    """Run a command and return its exit code. Errors are printed on standard error."""
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard(sys.stdout)  # the reader has closed the pipe, as `head` does
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _discard(sys.stdout)
        print(f"headrace: The output can't be written: {error.strerror}.", file=sys.stderr)
        return DISK_FULL
    except RequestPrinted:
        sys.stdout.flush()
        return 0
    except CycloptsError as error:
        return _report_usage_error(error)
    except (HeadraceError, ExceptionGroup) as error:
        errors = list(_headrace_errors(error))
        if not errors:
            raise
        for line in dict.fromkeys(f"headrace: {one}" for one in errors):
            print(printable_lines(line), file=sys.stderr)
        return errors[0].exit_code


def _discard(stream: TextIO) -> None:
    """Write what a stream still holds, and all that follows, to nowhere. Otherwise Python would fail to write it at exit, and
    report that.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _dispatch(arguments: list[str]) -> int:
    if arguments == ["--version"]:  # handled here because cyclopts would import its printer for it
        print(installed_version())
        return 0
    result = build(arguments[0] if arguments else None)(
        arguments or ["--help"], exit_on_error=False, print_error=False, result_action="return_value"
    )
    return result if isinstance(result, int) else 0


def _report_usage_error(error: CycloptsError) -> int:
    command = " ".join(("headrace", *(error.command_chain or ())))
    print(printable(f"headrace: {_sentence(error)} See `{command} --help`."), file=sys.stderr)
    return USAGE


def _sentence(error: CycloptsError) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, UnknownCommandError):
        text = text.partition(" Available commands:")[0]
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _headrace_errors(error: BaseException) -> Iterator[HeadraceError]:
    """Yield the errors to print if all of them are `HeadraceError`s. Otherwise nothing."""
    if isinstance(error, HeadraceError):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        others = error.subgroup(lambda one: not isinstance(one, (HeadraceError, BaseExceptionGroup)))
        if others is None:
            for one in error.exceptions:
                yield from _headrace_errors(one)


if __name__ == "__main__":
    main()
