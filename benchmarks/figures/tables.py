"""Tables and paragraphs that results write as a whole."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from benchmarks.figures.formulas import Results, figure
from benchmarks.peers import looking, results
from docsite.tables import table

_WIDTH = 120
_WRITES = ("wal_bytes", "commits", "dead_rows")
_WRITES_HEAD = ("bytes of WAL", "commits", "dead rows")


class Part(msgspec.Struct, frozen=True):
    """A part of a page.

    Attributes:
        write: makes its Markdown from the results that the page quotes.
        runs: the runs that it needs itself.
    """

    write: Callable[[Results], str]
    runs: frozenset[str] = frozenset()


def _of(run: str, write: Callable[[Mapping[str, Any]], str]) -> Part:
    """A part that has one result. It is a sentence that says so while there is none."""

    def written(known: Results) -> str:
        return write(known[run]) if run in known else f"`{run}` has no result yet.\n"

    return Part(written, frozenset({run}))


def _costs(result: Mapping[str, Any]) -> str:
    rows = [["call", "Postgres", "client", "from call to answer", *_WRITES_HEAD]]
    for name, cost in result["variants"].items():
        times = [f"{figure(cost[part])} µs" for part in ("postgres_us", "client_us", "elapsed_us")]
        rows.append([name, *times, *_writes(cost)])
    return table(*rows)


def _wal(result: Mapping[str, Any]) -> str:
    rows = [["published and consumed, per message", *_WRITES_HEAD]]
    rows += [[name, *_writes(written)] for name, written in result["variants"].items()]
    return table(*rows)


def _scale(result: Mapping[str, Any]) -> str:
    rows = [["workload", "predicted", "measured", "error"]]
    for name, point in result["variants"].items():
        rates = [f"{figure(point[part])}/s" for part in ("predicted", "measured")]
        rows.append([name, *rates, f"{point['error'] * 100:+.0f} %"])
    return table(*rows)


def _curve(result: Mapping[str, Any]) -> str:
    rows = [["workload", "predicted", "ended by"]]
    rows += [[name, f"{figure(point['predicted'])}/s", point["resource"]] for name, point in result["curve"].items()]
    return table(*rows)


def _peers(result: Mapping[str, Any]) -> str:
    return f"`{result['command']}`\n\n{results.markdown(results.rows(result['results']))}"


def _seen(result: Mapping[str, Any]) -> str:
    return looking.markdown(msgspec.convert(result["seen"], list[looking.Seen]))


def _writes(written: Mapping[str, float]) -> list[str]:
    return [figure(written[name]) if name in written else "" for name in _WRITES]


def _measured(known: Results) -> str:
    """The commits and the machines of the results."""
    runs: dict[str, list[str]] = defaultdict(list)
    for run, result in known.items():
        runs[_conditions(result)].append(f"`{run}`")
    if len(runs) == 1:
        return _wrapped(f"The figures on this page were measured {next(iter(runs))}.")
    intro = "The figures on this page are not all of one commit and one machine:"
    return _wrapped(intro) + "\n" + "".join(_wrapped(f"- {', '.join(names)}: {at}.") for at, names in runs.items())


def _conditions(result: Mapping[str, Any]) -> str:
    """Return the commit and the machine of a result, as the end of a sentence."""
    if "transcribed" in result:
        return f"before commit `{result['commit']}`, on {result['transcribed']}"
    machine, server, versions = result["machine"], result["server"], result["versions"]
    return (
        f"at commit `{result['commit']}` on {machine['cores']} cores ({machine['cpu']}, {machine['memory_gib']:.0f} GiB of"
        f" memory, {machine['system']}), with {server['version']} (`synchronous_commit` {server['synchronous_commit']},"
        f" `data_checksums` {server['data_checksums']}) and Python {versions['python']}"
    )


def _wrapped(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) + "\n"


PARTS = {
    "measured": Part(_measured),
    "costs": _of("costs", _costs),
    "wal": _of("wal", _wal),
    "scale": _of("scale", _scale),
    "curve": _of("scale", _curve),
    "peers": _of("peers", _peers),
    "seen": _of("peers_schedules", _seen),
}
"""The parts by name."""
