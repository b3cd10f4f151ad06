"""The full details of one message: its metadata, its headers, its data, and why it failed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.text import Text

from headrace.cli.observe.figures import BAD, FAINT, STRONG, pace
from headrace.cli.options.times import in_utc
from headrace.cli.output.tables import indented, printable
from headrace.model.records import ConsumerAtWork, DeadLetter, PeekedMessage, StoredMessage, WorkerInfo

LONGEST = 200_000
"""Maximum number of characters shown of one text."""


_TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*")(?P<colon>\s*:)?|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<word>true|false|null)'
)
_KEY, _TEXT, _OTHER = "#8abeb7", "#b5bd68", "#de935f"


def about(message: StoredMessage | DeadLetter) -> Text:
    """The full details of a message or a dead letter."""
    text = Text()
    for name, value in _facts(message):
        text.append(f"{name:<10}", FAINT)
        text.append(f"{printable(value)}\n", STRONG if name == "key" else "")
    if isinstance(message, DeadLetter):
        part(text, "error", lines_of(message.error or "none was given"), BAD)
        if message.traceback:
            part(text, "traceback", lines_of(message.traceback))
    if message.headers:
        part(text, "headers", of_json(message.headers))
    part(text, "data", of_json(message.data))
    return text


def _facts(message: StoredMessage | DeadLetter) -> Iterable[tuple[str, str]]:
    yield "key", message.key
    yield "seq", f"{message.seq:,}"
    yield "published", in_utc(message.created_at)
    if isinstance(message, DeadLetter):
        yield "died", in_utc(message.died_at)
        yield "attempts", str(message.attempts)
        yield "reason", message.reason + (", and its key waits for it" if message.blocks else "")
    if isinstance(message, PeekedMessage):
        yield "state", message.state.replace("_", " ")
        yield "attempts", str(message.attempts)
        if message.owner is not None:
            yield "owner", f"{message.owner}, by lease {message.lease_id} of {message.held}"
        if message.until is not None:
            yield "lease to" if message.state == "in_flight" else "due", in_utc(message.until)


def part(text: Text, name: str, content: Text, style: str = "") -> None:
    """Append a part with a heading."""
    text.append(f"\n── {name} ", FAINT)
    text.append("─" * max(2, 24 - len(name)) + "\n", FAINT)
    content.stylize(style)
    text.append_text(content)
    text.append("\n")


def of_json(data: Any) -> Text:
    """Format JSON, indented and in colours."""
    text = lines_of(indented(data))
    if len(text) <= LONGEST // 4:  # a terminal would be slow with more of it in colours
        for token in _TOKEN.finditer(text.plain):
            text.stylize(_KEY if token["colon"] else _TEXT if token["text"] else _OTHER, *token.span())
    return text


def lines_of(text: str) -> Text:
    """Format several lines, with every character escaped that a terminal would obey."""
    left = len(text) - LONGEST
    shown = "\n".join(printable(line.expandtabs(4)) for line in text[:LONGEST].split("\n"))
    return Text(shown if left <= 0 else f"{shown}\n… and {left:,} characters more")


def about_worker(info: WorkerInfo) -> Text:
    """The full heartbeat of a process."""
    text = Text()
    server = info.server
    facts = {
        "host": info.host, "process": str(info.pid), "kind": info.kind, "version": info.version, "since": in_utc(info.started_at),
        "seen": in_utc(info.seen_at) + (", and not since: it is gone" if info.gone else ""), "conns": str(info.connections),
        "requests": "" if server is None else f"{pace(server.requests)}/s, {server.in_flight:,} in flight, {server.waiting:,} wait to receive",
    }  # fmt: skip
    for name, value in facts.items():
        if value:
            text.append(f"{name:<10}", FAINT).append(f"{printable(value)}\n")
    for one in info.consumers:
        part(text, printable(f"{one.stream}:{one.name}"), _of_consumer(one))
    if info.more_consumers:
        text.append(f"\nand {info.more_consumers} consumers more\n", FAINT)
    return text


def _of_consumer(one: ConsumerAtWork) -> Text:
    latency = "" if one.latency is None else f", {one.latency * 1000:.3g} ms a message"
    breaker = "" if one.breaker is None else f"\nbreaker   {one.breaker}"
    return Text(
        f"actors    {one.busy} busy of {one.actors}: {printable(one.reason)}\n"
        f"messages  {pace(one.rate) or '–'}/s{latency}; {one.leased:,} leased, {one.waiting:,} of them waiting\n"
        f"so far    {one.acked:,} acked, {one.failed:,} failed{breaker}"
    )
