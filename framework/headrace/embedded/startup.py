"""Start and stop the server. Callers hold the start lock."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.embedded import postmaster
from headrace.embedded.binaries import find_installation
from headrace.embedded.cluster import make_cluster, write_settings
from headrace.embedded.errors import orphans_error, output_error
from headrace.embedded.os_user import OsUser
from headrace.embedded.paths import ServerDirectory, make_private_directory, socket_directory, trim_log
from headrace.embedded.postmaster import Phase, StopMode
from headrace.embedded.program_copies import usable_by
from headrace.model.errors import EmbeddedPostgresError

START_LIMIT = 120.0
"""Seconds for a start. Recovery after a crash may have to read gigabytes of WAL."""
STOP_LIMIT = 60.0
"""Seconds for a stop, which writes everything in memory to disk."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The settings to start the server with."""

    home: Path
    port: int | None
    settings: Mapping[str, str]
    orphan_limit: float = 5.0
    """Seconds for the processes of a killed server to notice. Only one in a long computation takes so long."""


def ensure_running(server_dir: ServerDirectory, os_user: OsUser, options: StartOptions) -> None:
    """Make the server ready, if it isn't."""
    phase = _wait_until_settled(server_dir, options)
    if phase is Phase.CHANGING:
        raise _stuck_error(server_dir, options)
    if phase is Phase.DOWN:
        _start(server_dir, os_user, options)
    _check_port(server_dir, options)


def ensure_stopped(server_dir: ServerDirectory, os_user: OsUser, options: StartOptions, mode: StopMode) -> None:
    """Stop the server, if there is one, and wait until its last process is gone."""
    phase, _ = postmaster.observe(server_dir)
    if phase is not Phase.DOWN:
        _stop(server_dir, options, mode)
    shutil.rmtree(socket_directory(options.home, os_user), ignore_errors=True)  # only for tidiness


def _stop(server_dir: ServerDirectory, options: StartOptions, mode: StopMode) -> None:
    limit = STOP_LIMIT if postmaster.living_pid(server_dir) else options.orphan_limit
    postmaster.ask_to_stop(server_dir, mode)
    if not postmaster.wait_until_down(server_dir, limit):
        if not postmaster.living_pid(server_dir):
            raise _stuck_error(server_dir, options)
        raise EmbeddedPostgresError(
            f"Postgres on {options.home} has not stopped within {STOP_LIMIT:.0f} s. See {server_dir.log}, "
            "and try the mode 'immediate', from which it recovers at the next start."
        )


def _wait_until_settled(server_dir: ServerDirectory, options: StartOptions) -> Phase:
    """Wait for the end of a start or stop after the process that began it has died."""
    phase, file = postmaster.observe(server_dir)
    if phase is Phase.CHANGING and file and file.status == "ready" and not file.socket.exists():
        # It runs, but its socket is gone, as after a cleanup of /tmp, so no client can reach it. A
        # new start makes a new socket.
        postmaster.ask_to_stop(server_dir, "fast")
    phase = postmaster.wait_while_changing(server_dir, options.orphan_limit)
    if phase is Phase.CHANGING and postmaster.living_pid(server_dir):
        phase = postmaster.wait_while_changing(server_dir, START_LIMIT)
    return phase


def _stuck_error(server_dir: ServerDirectory, options: StartOptions) -> EmbeddedPostgresError:
    if postmaster.living_pid(server_dir):
        return EmbeddedPostgresError(
            f"Postgres on {options.home} is still recovering after {START_LIMIT:.0f} s. "
            f"Watch {server_dir.log}, and try again once it reports that it is ready."
        )
    return EmbeddedPostgresError(orphans_error(options.home, postmaster.processes(server_dir)))


def _start(server_dir: ServerDirectory, os_user: OsUser, options: StartOptions) -> None:
    version = server_dir.version()
    installation = usable_by(os_user, find_installation(version))
    if version is None:
        make_cluster(server_dir, os_user, installation, options.home)
    sockets = socket_directory(options.home, os_user)
    make_private_directory(sockets, os_user, 0o700)
    write_settings(server_dir, os_user, sockets, options.port, options.settings)
    postmaster.clean_up_dead_server(server_dir, os_user, sockets)
    trim_log(server_dir.log)
    log_position = server_dir.log.stat().st_size if server_dir.log.exists() else 0
    if not postmaster.spawn(server_dir, os_user, installation):
        raise _stuck_error(server_dir, options)
    phase = postmaster.wait_while_changing(server_dir, START_LIMIT)
    if phase is Phase.DOWN:
        output = _log_since(server_dir, log_position)
        raise EmbeddedPostgresError(
            output_error(output, home=options.home, port=options.port, action="start", log=server_dir.log)
        )
    if phase is Phase.CHANGING:
        raise _stuck_error(server_dir, options)


def _log_since(server_dir: ServerDirectory, position: int) -> str:
    with server_dir.log.open("rb") as file:
        file.seek(position)
        return file.read().decode(errors="replace")


def _check_port(server_dir: ServerDirectory, options: StartOptions) -> None:
    _, file = postmaster.observe(server_dir)
    if options.port is None or file is None or (file.listens_on_tcp and file.port == options.port):
        return
    now = f"on port {file.port}" if file.listens_on_tcp else "without a TCP port"
    raise EmbeddedPostgresError(
        f"Postgres on {options.home} already runs {now}, and a port is opened only at its start. Stop it with "
        f"`headrace pg stop`, or unset HEADRACE_PG_PORT={options.port} to use it unchanged."
    )
