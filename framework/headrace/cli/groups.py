"""The groups of commands, and the modules that implement these. Operations may have their commands in their rows, see
`headrace.admin.requests.operations`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cyclopts import App

from headrace.cli.commands import contexts, databases, grants, jobs, schedules, tokens
from headrace.cli.commands.consumers import consumers, dead_letters, delivery, history, push, seek_and_pause
from headrace.cli.commands.operations import EXAMPLES as OF_ROWS
from headrace.cli.commands.operations import commands_of
from headrace.cli.commands.sources import backfills, captures, deliveries, failed_changes, sources, verifying
from headrace.cli.commands.streams import messages, searching, streams
from headrace.cli.examples import EXAMPLES as BY_HAND
from headrace.cli.examples import example
from headrace.cli.exit_codes import DESCRIPTION as EXIT_CODES
from headrace.cli.tree import DESCRIPTIONS

EXAMPLES = {**BY_HAND, **OF_ROWS}


def _group(name: str, commands: dict[str, tuple[Callable[..., Any], str]], description: str | None = None) -> App:
    """Build a group of these commands, each with its function and its arguments as the usage shows them, and of those that
    are made of operations. The commands that change or remove an object itself are the last ones. A group in the tree of
    commands has its description there.
    """
    group = App(
        name=name.split()[-1], help=description or DESCRIPTIONS[name], help_epilogue=EXIT_CODES, help_format="plaintext"
    )
    every = sorted({**commands, **dict(commands_of(name))}.items(), key=lambda one: one[0] in ("edit", "rm"))
    for position, (command, (function, arguments)) in enumerate(every):
        usage = f"Usage: headrace {name} {command} [OPTIONS] {arguments}".rstrip()
        epilogue = example(f"{name} {command}", EXAMPLES)
        group.command(function, name=command, usage=usage, help_epilogue=epilogue, sort_key=position)
    return group


stream = _group(
    "stream",
    {
        "add": (streams.add, "NAME"),
        "ls": (streams.ls, ""),
        "info": (streams.info, "NAME"),
        "view": (messages.view, "NAME"),
        "search": (searching.search, "NAME"),
        "journey": (searching.journey, "NAME SEQ"),
        "send": (messages.send, "NAME KEY JSON"),
        "republish": (messages.republish, "NAME TARGET"),
        "erase": (messages.erase, "NAME SEQ..."),
        "erased": (messages.erased, "NAME"),
        "scheduled": (messages.scheduled, "NAME"),
        "edit": (streams.edit, "NAME"),
        "rm": (streams.rm, "NAME"),
    },
)

consumer = _group(
    "consumer",
    {
        "add": (consumers.add, "STREAM NAME"),
        "ls": (consumers.ls, "[STREAM]"),
        "info": (consumers.info, "[STREAM] NAME"),
        "history": (history.history, "[STREAM] NAME"),
        "peek": (delivery.peek, "[STREAM] NAME"),
        "receive": (delivery.receive, "[STREAM] NAME"),
        "ack": (delivery.ack, "[STREAM] NAME ID..."),
        "nack": (delivery.nack, "[STREAM] NAME ID..."),
        "seek": (seek_and_pause.seek, "[STREAM] NAME TO"),
        "replay": (seek_and_pause.replay, "[STREAM] NAME"),
        "pause": (seek_and_pause.pause, "[STREAM] NAME"),
        "push": (push.push, "[STREAM] NAME"),
        "blocked": (delivery.blocked, "[STREAM] NAME"),
        "edit": (consumers.edit, "[STREAM] NAME"),
        "rm": (consumers.rm, "[STREAM] NAME"),
    },
)

consumer.command(
    _group(
        "consumer dead-letters",
        {
            "ls": (dead_letters.ls, "[STREAM] NAME"),
            "info": (dead_letters.info, "[STREAM] NAME SEQ"),
            "export": (dead_letters.export, "[STREAM] NAME"),
            "redrive": (dead_letters.redrive, "[STREAM] NAME"),
            "purge": (dead_letters.purge, "[STREAM] NAME"),
        },
        "List, show, export, redrive and delete dead letters: messages that failed too often or were rejected.",
    )
)

job = _group(
    "job",
    {
        "ls": (jobs.ls, "[STREAM]"),
        "info": (jobs.info, "ID"),
        "cancel": (jobs.cancel, "ID"),
    },
)

context = _group(
    "context",
    {
        "add": (contexts.add, "NAME"),
        "use": (contexts.use, "NAME"),
        "ls": (contexts.ls, ""),
        "rm": (contexts.rm, "NAME"),
    },
)

source = _group(
    "source",
    {
        "ls": (sources.ls, ""),
        "info": (sources.info, "NAME"),
        "rm": (sources.rm, "NAME"),
    },
)

source.command(
    _group(
        "source webhook",
        {
            "add": (sources.add_webhook, "NAME --stream STREAM"),
            "edit": (sources.edit_webhook, "NAME"),
            "deliveries": (deliveries.deliveries, "NAME"),
        },
        "Create and change webhook sources, whose deliveries become messages, and list these.",
    )
)


def _backfill_group(parent: str) -> App:
    return _group(
        f"{parent} backfill",
        {
            "start": (backfills.start, "NAME"),
            "ls": (backfills.ls, "[NAME]"),
            "cancel": (backfills.cancel, "NAME [ID]"),
        },
        "Start, list and cancel backfills, which publish the rows that a table already has.",
    )


source.command(_backfill_group("source"))

postgres = _group(
    "source postgres",
    {
        "add": (captures.add, "[NAME] --table TABLE"),
        "edit": (captures.edit, "NAME"),
        "ls": (sources.ls_captures, ""),
        "info": (sources.info, "NAME"),
        "check": (captures.check, "NAME"),
        "verify": (verifying.verify, "NAME"),
        "rm": (sources.rm, "NAME"),
    },
    "Create, show, change and remove sources that capture tables: every row change becomes a message.",
)
postgres.command(_backfill_group("source postgres"))
postgres.command(
    _group(
        "source postgres failures",
        {
            "ls": (failed_changes.ls, "NAME"),
        },
        "List, retry and delete row changes that could not become messages.",
    )
)
source.command(postgres)

schedule = _group(
    "schedule",
    {
        "ls": (schedules.ls, ""),
        "info": (schedules.info, "NAME"),
        "run": (schedules.run, "NAME"),
    },
)

database = _group(
    "database",
    {
        "add": (databases.add, "NAME --url-from REFERENCE"),
        "ls": (databases.ls, ""),
        "check": (databases.check, "NAME"),
        "rm": (databases.rm, "NAME"),
    },
)

token = _group(
    "token",
    {
        "add": (tokens.add, "NAME --scope SCOPE..."),
        "ls": (tokens.ls, ""),
        "open": (tokens.open_servers, ""),
    },
)

grant = _group(
    "grant",
    {
        "publish": (grants.publish, "ROLE"),
        "consume": (grants.consume, "ROLE"),
        "observe": (grants.observe, "ROLE"),
        "admin": (grants.admin, "ROLE"),
        "ls": (grants.ls, ""),
        "restore": (grants.restore, ""),
    },
)
