"""The results: medians with their spread, as a table for people, as Markdown for the documentation, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.peers.catalog import PEERS
from benchmarks.peers.comparing import Row, error_line
from benchmarks.peers.jobs import JOBS
from benchmarks.peers.measuring import Sample

NOISY = 0.05
"""Share of the machine's processor time that other processes took in a run, above which it is marked."""

COLUMNS = ("peer", "rate", "spread", "client µs", "server µs", "WAL B", "commits", "dead rows", "growth B", "remarks")


def flat(row: Row) -> dict[str, Any]:
    """The result as JSON has it. Figures are medians, for each message."""
    peer = PEERS[row.peer]
    result: dict[str, Any] = {
        "peer": row.peer,
        "title": peer.title,
        "version": row.version,
        "server": peer.server,
        "flushes": peer.flush,
        "job": row.job,
        "promised_order": peer.order,
    }
    if not row.samples:
        return {**result, "missing": remarks(row)[0], "failures": row.failures}
    names = ("rate", "client_us", "publisher_us", "server_us", "wal_bytes", "commits", "dead_rows", "growth", "others")
    return {
        **result,
        **{name: _middle(row.samples, name) for name in names},
        "samples": [msgspec.structs.replace(sample, settings={}) for sample in row.samples],
        "latency": _latency(row.samples),
        **{name: max(getattr(sample, name) for sample in row.samples) for name in ("lost", "doubled", "disordered")},
        "messages": [sample.messages for sample in row.samples],
        "settings": row.samples[0].settings,
        "remarks": remarks(row),
        "failures": row.failures,
    }


def rows(flat: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the results that JSON has."""
    return [msgspec.convert(one, Row) for one in flat]


def remarks(row: Row) -> list[str]:
    """Return the remarks that belong to a figure."""
    peer = PEERS[row.peer]
    if not row.samples:
        failed = f"failed: {error_line(row.failures)}" if row.failures else "not measured"
        return [row.missing or failed]
    worst = {name: max(getattr(one, name) for one in row.samples) for name in ("lost", "doubled", "disordered")}
    found = [f"{worst[name]:,} {name}" for name in ("lost", "doubled") if worst[name]]
    if worst["disordered"] and not peer.order:
        found.append("no order promised")
    elif worst["disordered"]:
        promised = JOBS[row.job].ordered or peer.order in ("per key", "of the log")
        found.append(f"{worst['disordered']:,} out of order" if promised else "not asked for order")
    if JOBS[row.job].mode == "effect" and not peer.effect:
        found.append("the row and the ack in separate transactions")
    if JOBS[row.job].mode == "hold" and peer.loop:
        found.append("its loop acks a batch once all of it is done")
    if not peer.flush:
        found.append("writes are not flushed each")
    if (noise := max(sample.others for sample in row.samples)) > NOISY:
        found.append(f"noise: others took {noise:.0%} of the machine")
    if row.failures:
        found.append(f"failed once: {error_line(row.failures)}")
    return [*found, *dict.fromkeys(note for sample in row.samples for note in sample.notes)]


def broken(rows: Iterable[Row], peer: str) -> list[str]:
    """Return the failures of a peer, in words."""
    found = []
    for row in rows:
        if row.peer != peer:
            continue
        found += [f"{row.job}: {failure}" for failure in row.failures]
        for sample in row.samples:
            counts = {"lost": sample.lost, "doubled": sample.doubled, "out of order": sample.disordered}
            found += [f"{row.job}: {count} {what}" for what, count in counts.items() if count]
    return found


def show(console: Console, rows: Sequence[Row]) -> None:
    """Print a table for each job."""
    for job, chosen in by_job(rows):
        table = Table(title=f"{job}: {JOBS[job].title}", title_justify="left", box=SIMPLE)
        for column in COLUMNS[:-1]:
            table.add_column(column, justify="left" if column == "peer" else "right", no_wrap=True)
        for row in chosen:
            if row.samples:
                table.add_row(*map(escape, cells(row)[:-1]))
        console.print(table)
        for row in chosen:
            if said := "; ".join(remarks(row)):
                console.print(f"  {escape(title(row))}: {escape(said)}", highlight=False)


def markdown(rows: Sequence[Row]) -> str:
    """The same tables as Markdown."""
    parts = []
    for job, chosen in by_job(rows):
        head = [f"### {JOBS[job].title[0].upper()}{JOBS[job].title[1:]}", "", f"| {' | '.join(COLUMNS)} |"]
        parts.append(
            "\n".join([*head, f"|{' --- |' * len(COLUMNS)}", *(f"| {' | '.join(cells(row))} |" for row in chosen)])
        )
    return "\n\n".join(parts) + "\n"


def by_job(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """The rows of each job, the fastest first (at a pace: the one with the lowest latency), those without a figure last."""
    jobs = dict.fromkeys(row.job for row in rows)
    return [(job, sorted((row for row in rows if row.job == job), key=rank)) for job in jobs]


def rank(row: Row) -> tuple[bool, float]:
    if not row.samples:
        return True, 0.0
    return False, value(row) if JOBS[row.job].kind == "pace" else -value(row)


def values(row: Row) -> list[float]:
    """The figures that a job is about, one for each repeat: milliseconds at the median, or messages per second."""
    if JOBS[row.job].kind == "pace":
        return [sample.latency["p50_ms"] for sample in row.samples]
    return [sample.rate for sample in row.samples]


def value(row: Row) -> float:
    return median(values(row))


def low(row: Row) -> float:
    return min(values(row))


def high(row: Row) -> float:
    return max(values(row))


def title(row: Row) -> str:
    peer = PEERS[row.peer]
    return f"{peer.title} {row.version}".strip()


def cells(row: Row) -> list[str]:
    if not row.samples:
        return [title(row), *[""] * (len(COLUMNS) - 2), "; ".join(remarks(row))]
    if JOBS[row.job].kind == "pace":
        latency = _latency(row.samples)
        rate, digits = f"p50 {latency['p50_ms']:.2f} ms, p99 {latency['p99_ms']:.1f} ms", 2
    else:
        rate, digits = f"{value(row):,.0f}/s" if value(row) else "–", 0
    spread = f"{low(row):,.{digits}f}–{high(row):,.{digits}f}" if len(row.samples) > 1 else ""
    client = _middle(row.samples, "client_us") or 0.0
    publisher = _middle(row.samples, "publisher_us") or 0.0
    return [
        title(row),
        rate,
        spread,
        f"{publisher:.0f} + {client:.0f}" if publisher else f"{client:.1f}",
        _figure(_middle(row.samples, "server_us"), 1),
        _figure(_middle(row.samples, "wal_bytes"), 0),
        _figure(_middle(row.samples, "commits"), 3),
        _figure(_middle(row.samples, "dead_rows"), 3),
        _figure(_middle(row.samples, "growth"), 0),
        "; ".join(remarks(row)),
    ]


def _figure(number: float | None, digits: int) -> str:
    return "" if number is None else f"{number:,.{digits}f}"


def _middle(samples: Sequence[Sample], name: str) -> float | None:
    values = [number for sample in samples if (number := getattr(sample, name)) is not None]
    return median(values) if values else None


def _latency(samples: Sequence[Sample]) -> dict[str, float]:
    """The latency of the repeat with the median p50. All percentiles are of the same repeat."""
    known = sorted((sample.latency for sample in samples if sample.latency), key=lambda one: one["p50_ms"])
    return known[len(known) // 2] if known else {}
