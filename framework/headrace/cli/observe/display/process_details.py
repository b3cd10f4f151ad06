"""The heartbeat of a process, in full."""

from __future__ import annotations

from rich.text import Text

from headrace.cli.observe.display.colors import FAINT
from headrace.cli.observe.display.formats import format_rate
from headrace.cli.observe.display.message_details import add_section
from headrace.cli.options.times import in_utc
from headrace.model.records import ConsumerAtWork
from headrace.model.text.printing import printable
from headrace.model.watching.live import ProcessRow


def process_details(info: ProcessRow) -> Text:
    """Return the last heartbeat of a process, in full."""
    text = Text()
    facts = {
        "host": info.host, "process": str(info.pid), "kind": info.kind, "version": info.version, "started": in_utc(info.started_at),
        "heartbeat": in_utc(info.seen_at) + (", none since: the process is gone" if info.gone else ""), "connections": str(info.connections),
        "blocked": "" if info.blocked is None else f"nothing runs, since the event loop is blocked by {info.blocked}",
        "requests": "" if info.waiting is None else f"{format_rate(info.requests)}/s, {info.requests_in_flight:,} in flight, {info.waiting:,} waiting for messages",
    }  # fmt: skip
    for name, value in facts.items():
        if value:
            text.append(f"{name:<12}", FAINT).append(f"{printable(value)}\n")
    for one in info.consumers:
        add_section(text, printable(f"{one.stream}:{one.name}"), _consumer_section(one))
    if info.more_consumers:
        text.append(f"\nand {info.more_consumers} more consumers\n", FAINT)
    return text


def _consumer_section(one: ConsumerAtWork) -> Text:
    latency = "" if one.latency is None else f", {one.latency * 1000:.3g} ms per message"
    breaker = "" if one.breaker is None else f"\nbreaker     {one.breaker}"
    if one.breaker_reason is not None:
        breaker += f": {printable(one.breaker_reason)}"
    measured = one.durations
    if measured is not None:
        shares = (("median", measured.p50), ("95 %", measured.p95), ("99 %", measured.p99))
        breaker += "\ntakes       " + ", ".join(f"{seconds * 1000:.3g} ms ({share})" for share, seconds in shares)
    return Text(
        f"actors      {one.busy} of {one.actors} busy: {printable(one.reason)}\n"
        f"messages    {format_rate(one.rate) or '–'}/s{latency}, {one.leased:,} leased, of which {one.waiting:,} waiting\n"
        f"total       {one.acked:,} acked, {one.failed:,} failed{breaker}"
    )
