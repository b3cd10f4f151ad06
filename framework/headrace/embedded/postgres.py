"""The public interface: use, start, stop and inspect the server of one data directory."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from headrace.embedded import locks, postmaster, users
from headrace.embedded.account import Account, account_for, open_for_owner
from headrace.embedded.binaries import find_installation
from headrace.embedded.cluster import DATABASE, ROLE, SOCKET_PORT, password_of
from headrace.embedded.errors import explained
from headrace.embedded.paths import (
    Seat,
    default_data_dir,
    find_seat,
    make_seat,
    nearest_existing,
    remove_seat,
    socket_directory,
)
from headrace.embedded.postmaster import Phase, StopMode
from headrace.embedded.startup import START_LIMIT, STOP_LIMIT, StartOptions, bring_down, bring_up
from headrace.embedded.users import Tenancy
from headrace.model.errors import ConfigurationError, EmbeddedPostgresError

_TURN_LIMIT = START_LIMIT + STOP_LIMIT


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a server at one moment."""

    running: bool
    """Whether it accepts connections."""
    pid: int | None
    """The process id of the server, while it runs."""
    version: str | None
    """The version of the programs, such as `18.4`. None when none were found."""
    data_dir: Path
    """The data directory as it was named."""
    cluster_dir: Path
    """The directory of Postgres's own files: below `data_dir`, or elsewhere if that can't be entered."""
    log: Path
    """The path of the server's log."""
    url: str = field(repr=False)
    """The URL to connect to, now or after a start. It may contain a password."""
    port: int | None
    """The open TCP port on 127.0.0.1. None when there is only the socket."""
    account: str
    """The user that runs the server."""
    users: tuple[int, ...]
    """The ids of the processes that use it."""
    kept: bool
    """Whether it was started explicitly, so that it runs on without users."""


class EmbeddedPostgres:
    """A private Postgres on one data directory, shared by all processes that name the same directory.

    It needs no event loop. Every call may block, up to about a second when the server has to be
    started or its data made, and longer to recover from a crash. It may be used from several
    threads.

    `data_dir` defaults to `default_data_dir()`. `port` additionally opens that TCP port on
    127.0.0.1, with a password. It defaults to `HEADRACE_PG_PORT`, or none. Then only the Unix
    socket is open, to root and to the user that runs the server. `settings` are Postgres settings
    that take precedence over Headrace's own. Port and settings apply when the server is started.

    Raises `ConfigurationError` for an invalid port. All methods raise `EmbeddedPostgresError` when
    Postgres can't be found, started or stopped.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        named = Path(data_dir).expanduser() if data_dir is not None else default_data_dir()
        self.data_dir = named.resolve()
        self.port = _valid_port(port)
        self._wishes = StartOptions(self.data_dir, self.port, dict(settings or {}))

    def acquire(self) -> Tenancy:
        """Use the server: start it if it isn't running, and keep it running until the release."""
        with self._turn() as (seat, account):
            users.sweep(seat)
            path, lock = users.register(seat)
            try:
                bring_up(seat, account, self._wishes)
                return Tenancy(self.url(), path, lock, self._leave)
            except BaseException:
                path.unlink(missing_ok=True)
                locks.let_go(lock)
                raise

    def start(self) -> None:
        """Start the server if it isn't running, and let it run until `stop`, with or without users."""
        with self._turn() as (seat, account):
            bring_up(seat, account, self._wishes)
            os.close(open_for_owner(seat.kept, os.O_WRONLY))

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server, even while it is in use. Does nothing when it isn't running.

        `fast` ends all sessions and writes everything to disk. `immediate` ends it at once, and the
        next start recovers. Neither loses a commit.
        """
        with self._turn_if_there() as place:
            if place:
                seat, account = place
                seat.kept.unlink(missing_ok=True)
                bring_down(seat, account, self._wishes, mode)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server if it runs, and start it. With `immediate` this is a crash and its recovery."""
        with self._turn() as (seat, account):
            bring_down(seat, account, self._wishes, mode)
            bring_up(seat, account, self._wishes)

    def destroy(self) -> None:
        """Stop the server and delete all of its data. Other files in the data directory are left alone."""
        with self._turn_if_there() as place:
            if place:
                seat, account = place
                bring_down(seat, account, self._wishes, "immediate")
                shutil.rmtree(seat.cluster, ignore_errors=True)
                remove_seat(seat, self.data_dir)

    def status(self) -> Status:
        """The state of the server now. Changes nothing and waits for nothing."""
        with explained(self.data_dir):
            seat, account = self._look()
            phase, file = postmaster.observe(seat)
            running = file if phase is Phase.READY else None
            return Status(
                running=running is not None,
                pid=running.pid if running else None,
                version=_version_for(seat),
                data_dir=self.data_dir,
                cluster_dir=seat.cluster,
                log=seat.log,
                url=self.url(),
                port=running.port if running and running.listens_on_tcp else None,
                account=account.name,
                users=tuple(users.pids(seat)),
                kept=seat.kept.exists(),
            )

    def url(self, database: str = DATABASE) -> str:
        """The libpq URL to connect to, whether or not the server is running now.

        It is the TCP address if this object was given a port, with the password once there is one.
        Otherwise it is the Unix socket, which is the fastest.
        """
        with explained(self.data_dir):
            seat, account = self._look()
            if self.port is not None:
                password = password_of(seat)
                login = f"{ROLE}:{password}" if password else ROLE
                return f"postgresql://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"
            phase, file = postmaster.observe(seat)
            if file and phase is Phase.READY:
                directory, port = file.socket_dir, file.port
            else:
                directory, port = socket_directory(self.data_dir, account), SOCKET_PORT
            # The port is explicit, since PGPORT in the client's environment would override its
            # default.
            return f"postgresql://{ROLE}@/{quote(database, safe='')}?host={quote(str(directory))}&port={port}"

    def program(self, name: str) -> Path:
        """The path of one of Postgres's programs, such as `psql`, of the version that fits the data."""
        with explained(self.data_dir):
            return find_installation(self._look()[0].version()).program(name)

    def _look(self) -> tuple[Seat, Account]:
        seat = find_seat(self.data_dir)
        return seat, account_for(seat.cluster, nearest_existing(self.data_dir))

    @contextlib.contextmanager
    def _turn(self) -> Iterator[tuple[Seat, Account]]:
        """Hold the start lock, in a seat that is made if it doesn't exist."""
        with explained(self.data_dir):
            seat, account = self._look()
            seat = make_seat(self.data_dir, account)
            with locks.one_at_a_time(seat.start_lock, _TURN_LIMIT):
                yield seat, account

    @contextlib.contextmanager
    def _turn_if_there(self) -> Iterator[tuple[Seat, Account] | None]:
        """Hold the start lock. Yields None when the data directory was never made."""
        with explained(self.data_dir):
            seat, account = self._look()
            if not seat.start_lock.exists():
                yield None
                return
            with locks.one_at_a_time(seat.start_lock, _TURN_LIMIT):
                yield seat, account

    def _leave(self, path: Path, lock: int) -> None:
        # Release first: of several processes that leave together, the first to get the lock finds
        # no user and stops.
        path.unlink(missing_ok=True)
        locks.let_go(lock)
        with self._turn_if_there() as place:
            if place:
                self._close_when_empty(*place)

    def _close_when_empty(self, seat: Seat, account: Account) -> None:
        users.sweep(seat)
        if not users.users(seat) and not seat.kept.exists():
            bring_down(seat, account, self._wishes, "fast")

    def __repr__(self) -> str:
        return f"<EmbeddedPostgres on {self.data_dir}>"


def _valid_port(port: int | None) -> int | None:
    if port is None:
        named = os.environ.get("HEADRACE_PG_PORT")
        if not named:
            return None
        if not named.isascii() or not named.isdigit():
            raise ConfigurationError(f"HEADRACE_PG_PORT is {named!r}; it should be a number from 1 to 65535.")
        port = int(named)
    if not 1 <= port <= 65535:
        raise ConfigurationError(f"The port of the embedded Postgres is {port}; it should be from 1 to 65535.")
    return port


def _version_for(seat: Seat) -> str | None:
    try:
        return find_installation(seat.version()).version
    except EmbeddedPostgresError:
        return None
