"""`headrace`: the tree of commands, and the boundary where errors become sentences and exit codes.

This module must not import the database driver, the event loop or the printer of tables. A command
imports them when it is called.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from cyclopts import App, CycloptsError, UnknownCommandError

from headrace.cli.examples import EXAMPLES, example
from headrace.cli.problems import Told
from headrace.model.errors import HeadraceError

_HELP = "A durable message stream on nothing but Postgres, and a pool of actors at work on it."
_INTERRUPTED = 130  # 128 + SIGINT, the convention of shells
_PIPE_CLOSED = 141  # 128 + SIGPIPE
_USAGE = 64  # EX_USAGE

_COMMANDS = {
    "run": ("headrace.cli.commands.run:run", "Run the consumers of an application."),
    "serve": ("headrace.cli.commands.serve:serve", "Serve the HTTP API, for clients in any language."),
    "publish": (
        "headrace.cli.commands.publish:publish",
        "Publish the lines of a file or of standard input to a stream.",
    ),
    "stream": ("headrace.cli.groups:stream", "Make, see and change streams, and the messages in them."),
    "consumer": (
        "headrace.cli.groups:consumer",
        "Make, see, change and move consumers; receive by hand; dead letters.",
    ),
    "source": (
        "headrace.cli.groups:source",
        "Make, see, change and remove sources: webhooks and tables that become messages.",
    ),
    "token": ("headrace.cli.groups:token", "Make, list and revoke the tokens that open the server."),
    "context": ("headrace.cli.groups:context", "Name servers and databases, and choose which commands are for."),
    "observe": (
        "headrace.cli.observe.command:observe",
        "Watch streams, consumers and processes live, and mend them from the keyboard.",
    ),
    "spark": (
        "headrace_spark.cli.group:spark",
        "Run pipelines and heavy transforms on Spark, and check that it is there.",
    ),
    "migrate": ("headrace.cli.commands.migrate:migrate", "Bring the database's schema up to this version of Headrace."),
    "pg": ("headrace.cli.commands.pg:pg", "Start, stop and enter the embedded Postgres."),
    "new": ("headrace.cli.commands.new:new", "Make a new service to start from."),
    "completion": (
        "headrace.cli.commands.completion:completion",
        "Print the script that completes commands in a shell.",
    ),
    "demo": (
        "headrace.cli.demo.command:demo",
        "Send a git repository's history through a stream, and check the result.",
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. It runs a command and exits with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _write_out_what_cannot_be_encoded()
    sys.exit(call(given))


def _write_out_what_cannot_be_encoded() -> None:
    """Print the code of a character that the locale lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def call(arguments: list[str]) -> int:
    """Run a command and return its exit code. Errors are printed as sentences on standard error."""
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does. Python would report this again when it flushes
        # at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except Told:
        sys.stdout.flush()
        return 0
    except CycloptsError as error:
        return _complain_about_usage(error)
    except (HeadraceError, ExceptionGroup) as error:
        ours = list(_ours(error))
        if not ours:
            raise
        for each in dict.fromkeys(f"headrace: {one}" for one in ours):
            print(each, file=sys.stderr)
        return ours[0].exit_code


def _dispatch(arguments: list[str]) -> int:
    if arguments == ["--version"]:  # handled here because cyclopts would import its printer for it
        print(installed_version())
        return 0
    result = build(arguments[0] if arguments else None)(
        arguments or ["--help"], exit_on_error=False, print_error=False, result_action="return_value"
    )
    return result if isinstance(result, int) else 0


def build(called: str | None = None) -> App:
    """Build the tree of commands without importing any of them.

    The command that is `called` supplies its own full help text.
    """
    app = App(
        name="headrace",
        help=_HELP,
        version=installed_version,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    for name, (place, sentence) in _COMMANDS.items():
        # A group of commands adds its own epilogue.
        below = {"help_epilogue": example(name)} if name in EXAMPLES else {}
        app.command(place, name=name, help=None if name == called else sentence, **below)
    return app


def installed_version() -> str:
    """The version of the installed distribution."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown (not installed)"


def _complain_about_usage(error: CycloptsError) -> int:
    command = " ".join(("headrace", *(error.command_chain or ())))
    print(f"headrace: {_sentence(error)} See `{command} --help`.", file=sys.stderr)
    return _USAGE


def _sentence(error: CycloptsError) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, UnknownCommandError):
        text = text.partition(" Available commands:")[0]
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _ours(error: BaseException) -> Iterator[HeadraceError]:
    """The errors to print, if all of them are errors that Headrace raises on purpose. Otherwise nothing."""
    if isinstance(error, HeadraceError):
        yield error
    elif isinstance(error, BaseExceptionGroup):
        others = error.subgroup(lambda one: not isinstance(one, (HeadraceError, BaseExceptionGroup)))
        if others is None:
            for one in error.exceptions:
                yield from _ours(one)


if __name__ == "__main__":
    main()
