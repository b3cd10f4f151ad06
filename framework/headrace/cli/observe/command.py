"""The command `headrace observe`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headrace.cli.connection.backend import Backend
from headrace.cli.connection.connect import administer
from headrace.cli.errors import UsageError
from headrace.cli.options.times import duration
from headrace.model.errors import ConfigurationError

if TYPE_CHECKING:
    from headrace.client import Administration

MIN_INTERVAL, MAX_INTERVAL = 0.2, 3600.0


def observe(
    *,
    interval: Annotated[str, Parameter(help="The time between updates, such as 500ms or 5s.")] = "1s",
    backend: Backend = Backend(),  # noqa: B008 - frozen
) -> None:
    """Watch streams, consumers, sources and processes live, and control them.

    An update runs about 4 short queries that evaluate no conditions on
    messages, and with --server none of its own beside those of the console. A
    slow store is queried less often. Every change asks for confirmation first. Press ? for
    the keys.
    """
    seconds = duration(interval, "--interval")
    if not MIN_INTERVAL <= seconds <= MAX_INTERVAL:
        raise UsageError(f"--interval {interval!r} is out of range: give 200ms to 1h.")
    backend.require_single_request("leave out --as-curl")
    if find_spec("textual") is None:
        raise ConfigurationError(
            "`headrace observe` needs textual, which is not installed. Install it with: pip install 'headrace[observe]'"
        )
    # It draws on standard error. A pipe there would be full of codes.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "`headrace observe` needs a terminal as its standard input and standard error. In a script, use"
            " `headrace stream ls --json` and `headrace consumer ls --json`."
        )
    administer(backend, _observe, backend, seconds)


def _describe(backend: Backend, admin: Administration) -> str:
    """Describe the server or the database, for the title."""
    from headrace.app import settings
    from headrace.client.remote import Remote
    from headrace.model.text.masking import masked

    if isinstance(admin, Remote):
        return admin.server.url
    chosen = backend.resolve()
    database = chosen if isinstance(chosen, str) else settings.read().database
    return "the embedded Postgres" if database is None else masked(database)


async def _observe(admin: Administration, backend: Backend, interval: float) -> None:
    from headrace.cli.observe.observer import Observer

    await Observer(admin, _describe(backend, admin), interval).run_async()
