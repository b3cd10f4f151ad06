"""Start and stop the server. Callers hold the start lock."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.embedded import postmaster
from headrace.embedded.account import Account
from headrace.embedded.binaries import find_installation
from headrace.embedded.cluster import make_cluster, write_settings
from headrace.embedded.errors import about_output, orphans
from headrace.embedded.paths import Seat, make_private_directory, socket_directory, trim_log
from headrace.embedded.postmaster import Phase, StopMode
from headrace.embedded.program_copies import usable_by
from headrace.model.errors import EmbeddedPostgresError

START_LIMIT = 120.0
"""Seconds for a start. Recovery after a crash may have to read gigabytes of WAL."""
STOP_LIMIT = 60.0
"""Seconds for a stop, which writes everything in memory to disk."""
ORPHAN_LIMIT = 5.0
"""Seconds for the processes of a killed server to notice. Only one in a long computation takes so long."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """What to start the server with."""

    home: Path
    port: int | None
    settings: Mapping[str, str]


def bring_up(seat: Seat, account: Account, wishes: StartOptions) -> None:
    """Make the server ready, if it isn't."""
    phase = _settle(seat)
    if phase is Phase.CHANGING:
        raise _stuck(seat, wishes)
    if phase is Phase.DOWN:
        _start(seat, account, wishes)
    _check_port(seat, wishes)


def bring_down(seat: Seat, account: Account, wishes: StartOptions, mode: StopMode) -> None:
    """Stop the server, if there is one, and wait until its last process is gone."""
    phase, _ = postmaster.observe(seat)
    if phase is not Phase.DOWN:
        _stop(seat, wishes, mode)
    shutil.rmtree(socket_directory(wishes.home, account), ignore_errors=True)  # only for tidiness


def _stop(seat: Seat, wishes: StartOptions, mode: StopMode) -> None:
    limit = STOP_LIMIT if postmaster.living(seat) else ORPHAN_LIMIT
    postmaster.ask_to_stop(seat, mode)
    if not postmaster.wait_until_down(seat, limit):
        if not postmaster.living(seat):
            raise _stuck(seat, wishes)
        raise EmbeddedPostgresError(
            f"Postgres on {wishes.home} has not stopped within {STOP_LIMIT:.0f} s: see {seat.log}, "
            "and try the mode 'immediate', from which it recovers at the next start."
        )


def _settle(seat: Seat) -> Phase:
    """Wait for the end of a start or stop after the process that began it has died."""
    phase, file = postmaster.observe(seat)
    if phase is Phase.CHANGING and file and file.status == "ready" and not file.socket.exists():
        # It runs, but its socket is gone, as after a cleanup of /tmp, so no client can reach it. A
        # new start makes a new socket.
        postmaster.ask_to_stop(seat, "fast")
    phase = postmaster.wait_while_changing(seat, ORPHAN_LIMIT)
    if phase is Phase.CHANGING and postmaster.living(seat):
        phase = postmaster.wait_while_changing(seat, START_LIMIT)
    return phase


def _stuck(seat: Seat, wishes: StartOptions) -> EmbeddedPostgresError:
    if postmaster.living(seat):
        return EmbeddedPostgresError(
            f"Postgres on {wishes.home} is still recovering after {START_LIMIT:.0f} s: "
            f"watch {seat.log} and try again once it says that it is ready."
        )
    return EmbeddedPostgresError(orphans(wishes.home, postmaster.processes(seat)))


def _start(seat: Seat, account: Account, wishes: StartOptions) -> None:
    version = seat.version()
    installation = usable_by(account, find_installation(version))
    if version is None:
        make_cluster(seat, account, installation, wishes.home)
    sockets = socket_directory(wishes.home, account)
    make_private_directory(sockets, account, 0o700)
    write_settings(seat, account, sockets, wishes.port, wishes.settings)
    postmaster.forget_the_dead(seat, account, sockets)
    trim_log(seat.log)
    known_log = seat.log.stat().st_size if seat.log.exists() else 0
    if not postmaster.spawn(seat, account, installation):
        raise _stuck(seat, wishes)
    phase = postmaster.wait_while_changing(seat, START_LIMIT)
    if phase is Phase.DOWN:
        output = _log_since(seat, known_log)
        raise EmbeddedPostgresError(
            about_output(output, home=wishes.home, port=wishes.port, doing="start", log=seat.log)
        )
    if phase is Phase.CHANGING:
        raise _stuck(seat, wishes)


def _log_since(seat: Seat, position: int) -> str:
    with seat.log.open("rb") as file:
        file.seek(position)
        return file.read().decode(errors="replace")


def _check_port(seat: Seat, wishes: StartOptions) -> None:
    _, file = postmaster.observe(seat)
    if wishes.port is None or file is None or (file.listens_on_tcp and file.port == wishes.port):
        return
    now = f"on port {file.port}" if file.listens_on_tcp else "without a TCP port"
    raise EmbeddedPostgresError(
        f"Postgres on {wishes.home} already runs {now}, and a port is opened only at its start: stop it with "
        f"`headrace pg stop`, or leave HEADRACE_PG_PORT={wishes.port} out to use it as it is."
    )
