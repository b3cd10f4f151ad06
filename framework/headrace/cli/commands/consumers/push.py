"""`headrace consumer push`: what a push consumer does."""

from __future__ import annotations

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.consumer_lookup import ConsumerArguments, administer_consumer
from headrace.cli.options.common import JsonOption
from headrace.cli.options.times import in_utc
from headrace.cli.output.json_output import print_json
from headrace.cli.output.stderr import print_notice
from headrace.cli.output.tables import print_pairs, print_table
from headrace.model.watching.operations import PushStatus


def push(
    *consumer: ConsumerArguments,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show the last answers of a push consumer's endpoint, and its circuit breaker."""
    status = administer_consumer(backend, consumer, lambda admin, stream, name: admin.push_status(stream, name))
    if json:
        print_json(status)
        return
    print_pairs(_facts(status))
    if not status.recent:
        print_notice("No answer is recorded.")
        return
    print_table(
        ("at", "status#", "ms#", "messages#", "error…"),
        [(one.at, one.status, f"{one.ms:.0f}", one.messages, one.error or "") for one in status.recent],
    )


def _facts(status: PushStatus) -> list[tuple[str, str]]:
    breaker = "no server runs the consumer"
    if status.breaker is not None:
        until = "" if status.breaker.until is None else f" until {in_utc(status.breaker.until)}"
        breaker = f"{status.breaker.state}{until}"
    return [
        ("url", status.url),
        ("circuit breaker", breaker),
        ("sent", f"{status.counts.ok:,}"),
        ("failed", f"{status.counts.failed:,}"),
    ]
