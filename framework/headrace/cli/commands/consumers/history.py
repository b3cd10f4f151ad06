"""`headrace consumer history`: show which messages a consumer has completed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.consumer_lookup import ConsumerArguments, administer_consumer
from headrace.cli.options.common import JsonOption, LimitOption
from headrace.cli.output.results import print_list
from headrace.cli.output.stderr import print_notice
from headrace.model.watching.completions import CompletionPage

if TYPE_CHECKING:
    from headrace.client import Administration


def history(
    *consumer: ConsumerArguments,
    key: Annotated[
        str | None,
        Parameter(name="--key", show_default=False, help="Only messages with this key that are in the stream."),
    ] = None,
    seq: Annotated[
        int | None, Parameter(name="--seq", show_default=False, validator=Number(gte=1), help="Only this message.")
    ] = None,
    before: Annotated[
        str | None,
        Parameter(name="--before", show_default=False, help="Only earlier entries, to continue with the same key."),
    ] = None,
    limit: LimitOption = 50,
    backend: Backend = Backend(),  # noqa: B008 - frozen
    json: JsonOption = False,
) -> None:
    """Show which messages a consumer has completed, from the newest one on.

    Each entry has the time, the worker process, how long the handler took, the
    attempt and the outcome. The consumer needs the setting --history, which says
    how long they are kept.
    """
    found = administer_consumer(backend, consumer, _history, key=key, seq=seq, before=before, limit=limit)
    print_list(
        found.completions,
        json,
        ("seq#", "at", "outcome", "attempts#", "took#", "process"),
        lambda one: (str(one.seq), one.at, one.outcome, one.attempts, one.took, one.process or "a client"),
        empty="There are no entries.",
    )
    if found.next is not None:
        print_notice(f"There may be more. Continue with --before {found.next}.")


async def _history(
    admin: Administration, stream: str, name: str, *, key: str | None, seq: int | None, before: str | None, limit: int
) -> CompletionPage:
    """Search for messages of a key until some were found, or the start of the stream is reached."""
    while True:
        page = await admin.history(stream, name, key=key, seq=seq, limit=limit, before=before)
        if page.completions or page.next is None:
            return page
        before = page.next
