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
from headrace.embedded.binaries import find_installation
from headrace.embedded.cluster import DATABASE, ROLE, SOCKET_PORT, password_of
from headrace.embedded.errors import os_errors_explained
from headrace.embedded.os_user import OsUser, open_for_owner, os_user_for
from headrace.embedded.paths import (
    ServerDirectory,
    default_data_dir,
    find_server_dir,
    make_server_dir,
    nearest_existing,
    remove_server_dir,
    socket_directory,
)
from headrace.embedded.postmaster import Phase, StopMode
from headrace.embedded.startup import START_LIMIT, STOP_LIMIT, StartOptions, ensure_running, ensure_stopped
from headrace.embedded.users import ServerHandle, User
from headrace.model.errors import ConfigurationError, EmbeddedPostgresError

_LOCK_LIMIT = START_LIMIT + STOP_LIMIT


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
        self, data_dir: Path | str | None = None, port: int | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        named = Path(data_dir).expanduser() if data_dir is not None else default_data_dir()
        self.data_dir = named.resolve()
        self.port = _valid_port(port)
        self._options = StartOptions(self.data_dir, self.port, dict(settings or {}))

    def acquire(self) -> ServerHandle:
        """Use the server: start it if it isn't running, and keep it running until the release."""
        with self._locked() as (server_dir, os_user):
            users.remove_dead(server_dir)
            user = users.register(server_dir, self.data_dir)
            try:
                ensure_running(server_dir, os_user, self._options)
                return ServerHandle(self.url(), user, self._release)
            except BaseException:
                user.leave()
                user.dismiss()
                raise

    def start(self) -> None:
        """Start the server if it isn't running, and let it run until `stop`, with or without users."""
        with self._locked() as (server_dir, os_user):
            ensure_running(server_dir, os_user, self._options)
            os.close(open_for_owner(server_dir.kept, os.O_WRONLY))

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server, even while it is in use. Does nothing when it isn't running.

        The mode `fast` ends all sessions and writes everything to disk. `immediate` ends it without a shutdown, and
        the next start recovers. Neither loses a commit.
        """
        with self._locked_if_exists() as place:
            if place:
                server_dir, os_user = place
                server_dir.kept.unlink(missing_ok=True)
                ensure_stopped(server_dir, os_user, self._options, mode)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server if it runs, and start it. With the mode `immediate` this is a crash and its recovery."""
        with self._locked() as (server_dir, os_user):
            ensure_stopped(server_dir, os_user, self._options, mode)
            ensure_running(server_dir, os_user, self._options)

    def destroy(self) -> None:
        """Stop the server and delete all of its data. Other files in the data directory are left alone."""
        with self._locked_if_exists() as place:
            if place:
                server_dir, os_user = place
                ensure_stopped(server_dir, os_user, self._options, "immediate")
                shutil.rmtree(server_dir.cluster, ignore_errors=True)
                remove_server_dir(server_dir, self.data_dir)

    def status(self) -> Status:
        """The state of the server now. Changes nothing and waits for nothing."""
        with os_errors_explained(self.data_dir):
            server_dir, os_user = self._locate()
            phase, file = postmaster.observe(server_dir)
            running = file if phase is Phase.READY else None
            return Status(
                running=running is not None,
                pid=running.pid if running else None,
                version=_version_for(server_dir),
                data_dir=self.data_dir,
                cluster_dir=server_dir.cluster,
                log=server_dir.log,
                url=self.url(),
                port=running.port if running and running.listens_on_tcp else None,
                account=os_user.name,
                users=tuple(users.pids(server_dir)),
                kept=server_dir.kept.exists(),
            )

    def url(self, database: str = DATABASE) -> str:
        """The libpq URL of a database to connect to, whether or not the server is running now.

        It is the TCP address if this object was given a port, with the password once there is one.
        Otherwise it is the Unix socket, which is the fastest.
        """
        with os_errors_explained(self.data_dir):
            server_dir, os_user = self._locate()
            if self.port is not None:
                password = password_of(server_dir)
                login = f"{ROLE}:{password}" if password else ROLE
                return f"postgresql://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"
            phase, file = postmaster.observe(server_dir)
            if file and phase is Phase.READY:
                directory, port = file.socket_dir, file.port
            else:
                directory, port = socket_directory(self.data_dir, os_user), SOCKET_PORT
            # The port is explicit, since PGPORT in the client's environment would override its
            # default.
            return f"postgresql://{ROLE}@/{quote(database, safe='')}?host={quote(str(directory))}&port={port}"

    def program(self, name: str) -> Path:
        """The path of one of Postgres's programs, such as `psql`, of the version that fits the data."""
        with os_errors_explained(self.data_dir):
            return find_installation(self._locate()[0].version()).program(name)

    def _locate(self) -> tuple[ServerDirectory, OsUser]:
        server_dir = find_server_dir(self.data_dir)
        return server_dir, os_user_for(server_dir.cluster, nearest_existing(self.data_dir))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[tuple[ServerDirectory, OsUser]]:
        """Hold the start lock, in a server directory that is made if it doesn't exist."""
        with os_errors_explained(self.data_dir):
            server_dir, os_user = self._locate()
            server_dir = make_server_dir(self.data_dir, os_user)
            with locks.exclusive(server_dir.start_lock, _LOCK_LIMIT):
                yield server_dir, os_user

    @contextlib.contextmanager
    def _locked_if_exists(self) -> Iterator[tuple[ServerDirectory, OsUser] | None]:
        """Hold the start lock. Yields None when the data directory was never made."""
        with os_errors_explained(self.data_dir):
            server_dir, os_user = self._locate()
            if not server_dir.start_lock.exists():
                yield None
                return
            with locks.exclusive(server_dir.start_lock, _LOCK_LIMIT):
                yield server_dir, os_user

    def stop_if_unused(self) -> None:
        """Stop the server unless a process uses it or it was started explicitly."""
        with self._locked_if_exists() as place:
            if place:
                server_dir, os_user = place
                users.remove_dead(server_dir)
                if not users.users(server_dir) and not server_dir.kept.exists():
                    ensure_stopped(server_dir, os_user, self._options, "fast")

    def _release(self, user: User) -> None:
        # Leave first: of several processes that leave together, the first to get the lock finds
        # no user and stops.
        user.leave()
        try:
            self.stop_if_unused()
        finally:
            user.dismiss()

    def __repr__(self) -> str:
        return f"<EmbeddedPostgres on {self.data_dir}>"


def _valid_port(port: int | None) -> int | None:
    if port is None:
        named = os.environ.get("HEADRACE_PG_PORT")
        if not named:
            return None
        if not named.isascii() or not named.isdigit():
            raise ConfigurationError(f"HEADRACE_PG_PORT is {named!r}. It must be a number from 1 to 65535.")
        port = int(named)
    if not 1 <= port <= 65535:
        raise ConfigurationError(f"The port of the embedded Postgres is {port}. It must be from 1 to 65535.")
    return port


def _version_for(server_dir: ServerDirectory) -> str | None:
    try:
        return find_installation(server_dir.version()).version
    except EmbeddedPostgresError:
        return None
