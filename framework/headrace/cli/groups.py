"""The commands of `headrace stream`, `consumer`, `context`, `source` and `token`, and the modules that
implement them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cyclopts import App

from headrace.cli.commands import contexts, messages, streams, tokens
from headrace.cli.commands.consumers import consumers, dead_letters, delivery, seek_and_pause
from headrace.cli.commands.sources import backfills, captures, failed_changes, sources
from headrace.cli.examples import example

EXIT_CODES = """\
Exit codes:
   0  done
   1  not done, or not all of it: nothing to receive, an ack too late, no yes
  64  the command was called wrongly
  65  something given can't be: a key, a condition, data, a place
  66  there is no such stream, consumer, source, token, context or file
  69  the database or the server can't be reached, or can't do it now: try again
  73  something can't be made where it was asked for
  74  there is no room: the disk is full, or the stream
  75  it is in use: --force, or later; or the server has too much to do
  78  settings that contradict each other, a database that is not set up,
      a token that won't do
 130  Ctrl-C"""


def _group(name: str, sentence: str, commands: dict[str, tuple[Callable[..., Any], str]]) -> App:
    """Build a group of commands, each with its function and its arguments as the usage shows them."""
    group = App(name=name.split()[-1], help=sentence, help_epilogue=EXIT_CODES, help_format="plaintext")
    for place, (command, (function, words)) in enumerate(commands.items()):
        usage = f"Usage: headrace {name} {command} [OPTIONS] {words}".rstrip()
        epilogue = example(f"{name} {command}")
        group.command(function, name=command, usage=usage, help_epilogue=epilogue, sort_key=place)
    return group


stream = _group(
    "stream",
    "Streams, and the messages in them.",
    {
        "add": (streams.add, "NAME"),
        "ls": (streams.ls, ""),
        "info": (streams.info, "NAME"),
        "view": (messages.view, "NAME"),
        "send": (messages.send, "NAME KEY JSON"),
        "republish": (messages.republish, "NAME TARGET"),
        "edit": (streams.edit, "NAME"),
        "rm": (streams.rm, "NAME"),
    },
)

consumer = _group(
    "consumer",
    "Consumers: where they are, what they are at, and moving them about.",
    {
        "add": (consumers.add, "STREAM NAME"),
        "ls": (consumers.ls, "[STREAM]"),
        "info": (consumers.info, "[STREAM] NAME"),
        "peek": (delivery.peek, "[STREAM] NAME"),
        "receive": (delivery.receive, "[STREAM] NAME"),
        "ack": (delivery.ack, "[STREAM] NAME ID..."),
        "nack": (delivery.nack, "[STREAM] NAME ID..."),
        "seek": (seek_and_pause.seek, "[STREAM] NAME TO"),
        "replay": (seek_and_pause.replay, "[STREAM] NAME"),
        "pause": (seek_and_pause.pause, "[STREAM] NAME"),
        "resume": (seek_and_pause.resume, "[STREAM] NAME"),
        "blocked": (delivery.blocked, "[STREAM] NAME"),
        "edit": (consumers.edit, "[STREAM] NAME"),
        "rm": (consumers.rm, "[STREAM] NAME"),
    },
)

consumer.command(
    _group(
        "consumer dead-letters",
        "Messages that could not be handled: see them, deliver them again, or delete them.",
        {
            "ls": (dead_letters.ls, "[STREAM] NAME"),
            "show": (dead_letters.show, "[STREAM] NAME SEQ"),
            "redrive": (dead_letters.redrive, "[STREAM] NAME"),
            "purge": (dead_letters.purge, "[STREAM] NAME"),
        },
    )
)

context = _group(
    "context",
    "Servers and databases by name, and which of them commands are for.",
    {
        "add": (contexts.add, "NAME"),
        "use": (contexts.use, "NAME"),
        "ls": (contexts.ls, ""),
        "rm": (contexts.rm, "NAME"),
    },
)

source = _group(
    "source",
    "Sources: where messages come from that nobody publishes.",
    {
        "ls": (sources.ls, ""),
        "info": (sources.info, "NAME"),
        "rm": (sources.rm, "NAME"),
    },
)

source.command(
    _group(
        "source webhook",
        "Webhooks that the server takes in.",
        {
            "add": (sources.add_webhook, "NAME --stream STREAM"),
            "edit": (sources.edit_webhook, "NAME"),
        },
    )
)


def _backfill(of: str) -> App:
    return _group(
        f"{of} backfill",
        "Tables that are read from their first row on.",
        {
            "start": (backfills.start, "NAME"),
            "ls": (backfills.ls, "[NAME]"),
            "cancel": (backfills.cancel, "NAME [ID]"),
        },
    )


source.command(_backfill("source"))

postgres = _group(
    "source postgres",
    "Tables that are captured: each change, or of each row the latest version.",
    {
        "add": (captures.add, "[NAME] --table TABLE"),
        "edit": (captures.edit, "NAME"),
        "ls": (sources.ls_captures, ""),
        "info": (sources.info, "NAME"),
        "check": (captures.check, "NAME"),
        "pause": (captures.pause, "NAME"),
        "resume": (captures.resume, "NAME"),
        "rm": (sources.rm, "NAME"),
    },
)
postgres.command(_backfill("source postgres"))
postgres.command(
    _group(
        "source postgres failures",
        "Changes that could not be made into messages: see them, try them again, or forget them.",
        {
            "ls": (failed_changes.ls, "NAME"),
            "retry": (failed_changes.retry, "NAME"),
            "drop": (failed_changes.drop, "NAME"),
        },
    )
)
source.command(postgres)

token = _group(
    "token",
    "Tokens that open the server.",
    {
        "add": (tokens.add, "NAME --scope SCOPE..."),
        "ls": (tokens.ls, ""),
        "revoke": (tokens.revoke, "TOKEN"),
    },
)
