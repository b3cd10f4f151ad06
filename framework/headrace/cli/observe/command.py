"""The command `headrace observe`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.options.backend import Backend
from headrace.cli.options.connection import administer
from headrace.cli.options.times import duration
from headrace.cli.problems import UsageProblem
from headrace.client.address import Server
from headrace.model.errors import ConfigurationError

if TYPE_CHECKING:
    from headrace.client import Administration

SHORTEST, LONGEST = 0.2, 3600.0


def observe(
    *,
    interval: Annotated[str, Parameter(help="How long from one look to the next, such as 500ms or 5s.")] = "1s",
    backend: Backend = Backend(),  # noqa: B008 - frozen
) -> None:
    """Watch streams, consumers, sources and processes live, and mend them from the keyboard.

    Each update runs 4 queries that evaluate no conditions on messages. At the
    usual interval that is at most 4 queries a second. A store that answers
    slowly is queried less often. Every change asks for confirmation first. In
    the program, `?` shows the keys.
    """
    seconds = duration(interval, "--interval")
    if not SHORTEST <= seconds <= LONGEST:
        raise UsageProblem(f"--interval {interval!r} can't be: take 200ms to 1h.")
    backend.one_request("leave --as-curl out")
    if find_spec("textual") is None:
        raise ConfigurationError(
            "`headrace observe` needs textual, which is not installed: pip install 'headrace[observe]'."
        )
    administer(backend, _observe, where(backend), seconds)


def where(backend: Backend) -> str:
    """A description of the server or database, for the title."""
    from headrace.app import settings
    from headrace.store.database.errors import safe

    found = backend.found()
    if isinstance(found, Server):
        return found.url
    database = found or settings.read({}).database
    return "the embedded Postgres" if database is None else safe(database)


async def _observe(admin: Administration, title: str, interval: float) -> None:
    from headrace.cli.observe.observer import Observer

    await Observer(admin, title, interval).run_async()
