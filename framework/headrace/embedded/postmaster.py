"""The running server: its state, and how to start it, wait for it and end it.

A server's life, as seen from outside:

        spawn             socket listens, status "ready"
    DOWN ────► CHANGING ────────────────────────────────► READY
      ▲            ▲                                        │
      └────────────┴────────────────────────────────────────┘
        server lock free         SIGINT, SIGQUIT, or a death

The server's lock (see `headrace.embedded.locks`) is held in CHANGING and READY.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from headrace.embedded import locks
from headrace.embedded.binaries import Installation
from headrace.embedded.os_user import OsUser, open_for_owner
from headrace.embedded.paths import ServerDirectory

StopMode = Literal["fast", "immediate"]

_SIGNALS: dict[StopMode, signal.Signals] = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_FIELDS = 8


class Phase(Enum):
    """The phase of a server's life."""

    DOWN = "down"
    CHANGING = "changing"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class PidFile:
    """The contents of `postmaster.pid`. Postgres's `utils/pidfile.h` describes the lines."""

    pid: int
    port: int
    socket_dir: Path
    listens_on_tcp: bool
    status: str

    @classmethod
    def read(cls, server_dir: ServerDirectory) -> PidFile | None:
        """Read the file. None when it doesn't exist, or isn't complete yet."""
        try:
            lines = _pid_file(server_dir).read_text().split("\n")
        except (FileNotFoundError, NotADirectoryError):
            return None
        if len(lines) < _FIELDS:
            return None
        pid, _, _, port, sockets, address, _, status, *_ = (line.strip() for line in lines)
        return cls(abs(int(pid)), int(port), Path(sockets), bool(address), status)

    @property
    def socket(self) -> Path:
        """The path of the Unix socket."""
        return self.socket_dir / f".s.PGSQL.{self.port}"


def observe(server_dir: ServerDirectory) -> tuple[Phase, PidFile | None]:
    """The server's phase, and its pid file if there is a complete one."""
    file = PidFile.read(server_dir)
    if file and file.status == "ready" and _listens(file.socket) and not _is_dead(file.pid):
        return Phase.READY, file  # also when it was started by hand, and doesn't hold our lock
    return (Phase.CHANGING if locks.is_held(server_dir.server_lock) else Phase.DOWN), file


def wait_while_changing(server_dir: ServerDirectory, limit: float) -> Phase:
    """Wait until the server is ready or gone, for up to `limit` seconds, and return its phase then."""
    return _wait(server_dir, limit, lambda phase: phase is not Phase.CHANGING)


def wait_until_down(server_dir: ServerDirectory, limit: float) -> bool:
    """Wait until the server is gone, for up to `limit` seconds. Returns whether it is."""
    return _wait(server_dir, limit, lambda phase: phase is Phase.DOWN) is Phase.DOWN


def _wait(server_dir: ServerDirectory, limit: float, enough: Callable[[Phase], bool]) -> Phase:
    deadline = time.monotonic() + limit
    while True:
        phase, _ = observe(server_dir)
        if enough(phase) or time.monotonic() > deadline:
            return phase
        time.sleep(locks.POLL)


def spawn(server_dir: ServerDirectory, os_user: OsUser, installation: Installation) -> bool:
    """Start the server and return without waiting. False when the server's lock isn't free after all.

    A shell starts it in the background and ends, so the server is not our child. It outlives us,
    and leaves no zombie in a process that doesn't expect children. The server inherits the lock.
    """
    lock = locks.open_locked_soon(server_dir.server_lock, 1.0)
    if lock is None:
        return False
    try:
        with open(open_for_owner(server_dir.log, os.O_WRONLY | os.O_APPEND), "ab") as log:
            os_user.run(
                ["/bin/sh", "-c", '"$@" &', "sh", installation.program("postgres"), "-D", server_dir.cluster],
                log=log,
                pass_fds=(lock,),
            )
    finally:
        locks.close_only(lock)
    return True


def clean_up_dead_server(server_dir: ServerDirectory, os_user: OsUser, sockets: Path) -> None:
    """Make the remains of a killed server harmless. The caller holds the start lock, and the server is down.

    Postgres won't start while the process id in the file is alive, and after a restart of a
    container another program may have that id. The rest of the file has to stay: it names the
    shared memory by which Postgres makes sure that no process of the dead server is left. Only the id is therefore
    replaced, by a free one.
    """
    if living_pid(server_dir):
        return  # a server was started by hand just now, and Postgres will report it
    for left in sockets.iterdir():
        left.unlink()  # the directory is this cluster's alone
    path = _pid_file(server_dir)
    try:
        pid, newline, rest = path.read_text().partition("\n")
    except FileNotFoundError:
        return
    if not rest.strip():
        path.unlink()  # the disk was full, or the power failed: an empty file would only prevent the start
    elif _is_alive(int(pid)):
        os_user.write(path, f"{_free_pid()}{newline}{rest}")


def ask_to_stop(server_dir: ServerDirectory, mode: StopMode) -> None:
    """Send the stop signal, if there is a server to get it."""
    if pid := living_pid(server_dir):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _SIGNALS[mode])


def living_pid(server_dir: ServerDirectory) -> int | None:
    """The process id of the living server, even when it isn't ready. None for orphans without one."""
    try:
        pid = int(_pid_file(server_dir).read_text().partition("\n")[0])
    except (FileNotFoundError, ValueError):
        return None
    return pid if is_postmaster(pid, server_dir) else None


def processes(server_dir: ServerDirectory) -> list[int]:
    """The ids of all processes that work in the cluster, where the system reports it (on Linux)."""
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return sorted(pid for pid in pids if is_postmaster(pid, server_dir))


def is_postmaster(pid: int, server_dir: ServerDirectory) -> bool:
    """Whether the process is this cluster's server. Prevents signalling a program that reuses its old id."""
    try:
        # On Linux the kernel knows it: the server and all its processes work in the data directory.
        return os.path.samestat(os.stat(f"/proc/{pid}/cwd"), server_dir.cluster.stat())
    except FileNotFoundError:
        if Path("/proc/self/cwd").exists():
            return False
    except PermissionError:
        return False
    answer = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return str(server_dir.cluster) in answer.stdout


def _is_dead(pid: int) -> bool:
    """Whether the process has ended, even if it has not been reaped yet.

    A dead server's socket may still accept a connection, while a process that the server had just
    forked has not closed it yet.
    """
    try:
        os.stat(f"/proc/{pid}/cwd")
    except FileNotFoundError:
        return Path("/proc/self/cwd").exists() or not _is_alive(pid)
    except PermissionError:
        return False  # another user's process, so it is alive
    return False


def _pid_file(server_dir: ServerDirectory) -> Path:
    return server_dir.cluster / "postmaster.pid"


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _is_alive(pid: int) -> bool:
    try:
        os.kill(abs(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _free_pid() -> int:
    # A process that has just ended and been reaped. Ids are assigned in turn, so this one stays
    # free.
    with subprocess.Popen(["/bin/sh", "-c", ":"]) as process:
        return process.pid
