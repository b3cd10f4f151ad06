"""`headrace pg start|stop|status|psql|url`: the embedded Postgres."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

from cyclopts import App, Parameter

from headrace.app import settings
from headrace.cli.options.common import JsonOption
from headrace.cli.output.json_output import print_json
from headrace.cli.tree import DESCRIPTIONS
from headrace.embedded import EmbeddedPostgres, Status

pg = App(name="pg", help=DESCRIPTIONS["pg"], help_format="plaintext")

NOT_RUNNING = 3  # as for `pg_ctl status`

DataOption = Annotated[
    Path | None,
    Parameter(
        name="--data",
        env_var="HEADRACE_DATA",
        show_default=False,
        help="The data directory. Default: .headrace/postgres of the project, or that of the user.",
    ),
]
PortOption = Annotated[
    int | None,
    Parameter(
        name="--port",
        env_var="HEADRACE_PG_PORT",
        show_default=False,
        help="A TCP port on 127.0.0.1, in addition to the Unix socket. Takes effect when the server starts.",
    ),
]


@pg.command
def start(*, data: DataOption = None, port: PortOption = None) -> None:
    """Start the embedded Postgres. It runs until `headrace pg stop`."""
    server = _server(data, port)
    server.start()
    _print_status(server.status())


@pg.command
def stop(
    *,
    data: DataOption = None,
    immediate: Annotated[
        bool, Parameter(negative="", help="Stop without a shutdown. Postgres recovers at the next start.")
    ] = False,
) -> None:
    """Stop the embedded Postgres, even if it is in use. Committed data stays."""
    server = _server(data)
    was_running = server.status().running
    server.stop("immediate" if immediate else "fast")
    print(f"Postgres on {server.data_dir} {'stopped' if was_running else 'was not running'}.")


@pg.command
def status(*, data: DataOption = None, json: JsonOption = False) -> int:
    """Show the state of the embedded Postgres, its URL, and which processes use it.

    The exit code is 3 if it doesn't run.
    """
    state = _server(data).status()
    if json:
        print_json(_facts(state))
    else:
        _print_status(state)
    return 0 if state.running else NOT_RUNNING


@pg.command
def url(*, data: DataOption = None, port: PortOption = None) -> None:
    """Print the URL of the embedded Postgres, whether or not it runs now."""
    server = _server(data, port)
    print(server.url())
    if not server.status().running:
        print("Postgres is not running. Start it with `headrace pg start`.", file=sys.stderr)


@pg.command
def psql(
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True, help="Arguments for psql.")],
    data: DataOption = None,
) -> int:
    """Open psql on the embedded Postgres, which is started if necessary. Arguments after `--` go to psql."""
    server = _server(data)
    with server.acquire() as handle:
        # Ctrl-C is for psql, which uses it to end a query. This is a handler because psql would inherit
        # SIG_IGN.
        previous = signal.signal(signal.SIGINT, lambda *_: None)
        try:
            url, password = _without_password(handle.url)
            environment = os.environ if password is None else {**os.environ, "PGPASSWORD": password}
            return subprocess.call([server.program("psql"), url, *arguments], env=environment)
        finally:
            signal.signal(signal.SIGINT, previous)


def _without_password(url: str) -> tuple[str, str | None]:
    """Return a URL without its password, and the password. Every user of the machine could see it as an argument."""
    parts = urlsplit(url)
    if parts.password is None:
        return url, None
    login, _, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{login.partition(':')[0]}@{place}").geturl(), unquote(parts.password)


def _server(data: Path | None, port: int | None = None) -> EmbeddedPostgres:
    return EmbeddedPostgres(settings.read({"data": data}).data, port)


def _facts(found: Status) -> dict[str, object]:
    return {
        "running": found.running,
        "pid": found.pid,
        "version": found.version,
        "url": found.url,
        "port": found.port,
        "data": str(found.data_dir),
        "log": str(found.log),
        "account": found.account,
        "users": list(found.users),
        "kept": found.kept,
    }


def _print_status(found: Status) -> None:
    from headrace.cli.output.tables import print_pairs

    version = f"PostgreSQL {found.version}" if found.version else "Postgres"
    users = ", ".join(map(str, found.users)) or "none"
    until = "until `headrace pg stop`" if found.kept else "until its last user ends"
    facts = [("status", f"{version} runs as process {found.pid}, {until}" if found.running else "not running")]
    if found.running:
        facts += [
            ("url", found.url),
            ("account", found.account),
            ("users", f"processes {users}" if found.users else users),
        ]
    print_pairs([*facts, ("data", str(found.data_dir)), ("log", str(found.log))])
