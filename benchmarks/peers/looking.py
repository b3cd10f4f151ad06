"""Runs the schedules against the peers, and makes a table of what was seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape

from benchmarks.peers import installing
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.children import PeerFailed, PeerUnable
from benchmarks.peers.comparing import error_line, say
from benchmarks.peers.installing import NotInstalled
from benchmarks.peers.schedules import SCHEDULES, VISIBILITY, Stage
from benchmarks.peers.servers import Templates


class Seen(msgspec.Struct, frozen=True):
    """The behaviour of a peer in a schedule."""

    schedule: str
    peer: str
    version: str
    seen: str


def look(
    postgres: str,
    restart: Callable[[], None] | None,
    names: Sequence[str],
    schedules: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
) -> list[Seen]:
    """Run schedules against peers. An interrupt ends it, with what was seen by then.

    Args:
        postgres: the URL of the server.
        restart: crashes it and starts it.
        names: the peers.
        schedules: the names of the schedules.
        options: settings of peers, by the peer's name.
    """
    templates = Templates(postgres)
    seen: list[Seen] = []
    try:
        for name in names:
            peer = PEERS[name]
            given = VISIBILITY.get(peer.adapter.partition(".")[0], {}) | dict(options.get(name, {}))
            try:
                launch = installing.launch(name, given)
            except NotInstalled as reason:
                seen += [Seen(schedule, name, installing.version(peer), str(reason)) for schedule in schedules]
                continue
            stage = Stage(peer, templates, launch, restart)
            for schedule in schedules:
                seen.append(Seen(schedule, name, installing.version(peer), _looked(stage, schedule)))
                say(f"{schedule} {name}: {seen[-1].seen}")
    except KeyboardInterrupt:
        say("interrupted")
    finally:
        templates.close()
    return seen


def _looked(stage: Stage, schedule: str) -> str:
    try:
        return SCHEDULES[schedule](stage)
    except PeerUnable as reason:
        return str(reason)
    except PeerFailed as reason:
        return f"the schedule failed: {error_line([str(reason)])}"
    except Exception as error:  # whatever a peer does, the others are looked at
        return f"the schedule failed: {type(error).__name__}: {error}"


def show(console: Console, seen: Sequence[Seen]) -> None:
    """Print what was seen, by schedule."""
    for schedule in dict.fromkeys(one.schedule for one in seen):
        console.print(f"[bold]{schedule}[/]: {SCHEDULES[schedule].__doc__}")
        for one in seen:
            if one.schedule == schedule:
                console.print(f"  {escape(_title(one)):34} {escape(one.seen)}", highlight=False)


def markdown(seen: Sequence[Seen]) -> str:
    """The same as Markdown: a table for each schedule."""
    parts = []
    for schedule in dict.fromkeys(one.schedule for one in seen):
        about = SCHEDULES[schedule].__doc__ or schedule
        rows = [f"| {_title(one)} | {one.seen} |" for one in seen if one.schedule == schedule]
        parts.append("\n".join([f"### {about[0].upper()}{about[1:]}", "", "| system | seen |", "| --- | --- |", *rows]))
    return "\n\n".join(parts) + "\n"


def _title(one: Seen) -> str:
    return f"{PEERS[one.peer].title} {one.version}".strip()
