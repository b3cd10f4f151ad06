"""The totals in the first line of the screen."""

from __future__ import annotations

from headrace.cli.observe.display.colors import BAD, GOOD, WARN
from headrace.cli.observe.display.formats import format_count, format_rate
from headrace.model.watching.live import LiveSnapshot


def totals(snapshot: LiveSnapshot) -> list[tuple[str, str, str]]:
    """Return the totals over all streams, consumers and sources: name, value and style."""
    published = sum(stream.publish_rate or 0 for stream in snapshot.streams)
    finished = sum(consumer.finish_rate or 0 for consumer in snapshot.consumers)
    lag = sum(consumer.lag for consumer in snapshot.consumers)
    dead = sum(consumer.dead_letters for consumer in snapshot.consumers)
    found = [
        ("in/s", format_rate(published), GOOD if published else ""),
        ("done/s", format_rate(finished), GOOD if finished else ""),
        ("lag", format_count(lag), WARN if any(one.state == "growing" for one in snapshot.consumers) else ""),
        ("dead", format_count(dead), BAD if dead else ""),
    ]
    problems = _source_problems(snapshot)
    return [*found, ("sources", problems, BAD)] if problems else found


def _source_problems(snapshot: LiveSnapshot) -> str:
    """Return how many sources are stopped, have an alarm or capture less than they should: `1 stopped, 2 alarm`."""
    states = ("stopped", "alarm", "degraded")
    counts = {state: sum(source.state == state for source in snapshot.sources) for state in states}
    return ", ".join(f"{number} {state}" for state, number in counts.items() if number)
