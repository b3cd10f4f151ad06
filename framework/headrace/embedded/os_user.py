"""The user that runs the server. Postgres refuses to run as root, so root runs it as another user."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.model.errors import EmbeddedPostgresError

USERS_FOR_ROOT = ("postgres", "nobody")
_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class OsUser:
    """A user of this machine that owns the cluster and runs the server."""

    name: str
    uid: int
    gid: int

    @property
    def is_current(self) -> bool:
        """Whether this is the user that the calling process runs as."""
        return self.uid == os.geteuid()

    def run(
        self,
        command: Sequence[str | Path],
        *,
        stdin: str = "",
        log: IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run the command as this user, in a new session, and wait for it.

        Its output is returned in `stdout`, or written to `log` if given. A command that leaves a
        daemon behind needs `log`, since the daemon would keep a pipe open as long as it lives.
        """
        other = not self.is_current
        try:
            return subprocess.run(
                [str(part) for part in command],
                input=stdin,
                stdout=log if log is not None else subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd="/",  # the other user may not have access to our directory
                env=_environment(),
                umask=0o077,
                start_new_session=True,  # the terminal's Ctrl-C must not reach the server
                pass_fds=pass_fds,
                user=self.uid if other else None,
                group=self.gid if other else None,
                extra_groups=() if other else None,
                check=False,
            )
        except subprocess.SubprocessError as error:  # raised when the child can't become the other user
            raise EmbeddedPostgresError(
                f"Postgres can't run as root, and this root can't start it as the user {self.name!r}. "
                "Run as an ordinary user, or use your own database server."
            ) from error

    def can_execute(self, path: Path) -> bool:
        """Whether this user can reach and execute the file (or enter the directory)."""
        if self.is_current:
            return os.access(path, os.X_OK)
        # Running the test respects access lists and mount options. Reading mode bits would not.
        return self.run(["/bin/sh", "-c", 'test -x "$1"', "sh", path]).returncode == 0

    def write(self, path: Path, text: str) -> None:
        """Write a file that belongs to this user and is private to it, atomically.

        Root writes in a directory of the server's user here. That user could have put a link there
        to any file of the system, so no existing file is opened.
        """
        aside = path.with_name(path.name + ".aside")
        aside.unlink(missing_ok=True)
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            if not self.is_current:
                os.fchown(fd, self.uid, self.gid)
            file.write(text)
            file.flush()
            os.fsync(fd)
        aside.rename(path)

    def own(self, path: Path) -> None:
        """Make this user the owner of the file or directory, unless it is the calling user."""
        if not self.is_current:
            os.chown(path, self.uid, self.gid)


def os_user_for(*places: Path) -> OsUser:
    """The user that runs the server: the calling user, or another one for root.

    For root it is the owner of the first of `places` that exists and isn't root's, so that data
    made by an ordinary user stays usable for that user. Otherwise it is `postgres`, or else the
    user `nobody`. Raises `EmbeddedPostgresError` when none of them exists.
    """
    uid = os.geteuid()
    if uid != 0:
        return OsUser(_name_of(uid), uid, os.getegid())
    owner = next((stat.st_uid for place in places if (stat := _stat(place)) and stat.st_uid != 0), None)
    if owner is not None and (known := _lookup(owner)):
        return known
    for name in USERS_FOR_ROOT:
        if known := _lookup(name):
            return known
    raise EmbeddedPostgresError(
        "Postgres can't run as root, and this machine has no user named postgres or nobody to run it. "
        "Create one (`useradd --system postgres`), or run as an ordinary user."
    )


def open_for_owner(path: Path, flags: int) -> int:
    """Open a file, creating it if missing. Root's new file in another user's directory belongs to that user.

    Links are not followed, since one could lead root to any file of the system.
    """
    fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(fd, owner.st_uid, owner.st_gid)
    except BaseException:
        os.close(fd)
        raise
    return fd


def give_to_owner_of_parent(directory: Path) -> None:
    """Give a new directory to the owner of its parent directory."""
    if os.geteuid() == 0:
        owner = directory.parent.stat()
        os.chown(directory, owner.st_uid, owner.st_gid, follow_symlinks=False)


# A batch of large messages is megabytes, allocated and freed at each call. By default glibc returns
# them to the kernel each time, and faulting the pages in again costs more than filling them. Other
# allocators ignore these variables.
_MALLOC = {
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TOP_PAD_": str(2**20),
}


def _environment() -> Mapping[str, str]:
    # Not our whole environment: it may hold secrets, and PGPORT, PGDATA, PGTZ and others would
    # change the server's settings.
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {"PATH": os.defpath, **passed, "LC_ALL": "C", "TZ": "UTC", **_MALLOC}


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _lookup(user: int | str) -> OsUser | None:
    try:
        entry = pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except KeyError:
        return None
    return OsUser(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _name_of(uid: int) -> str:
    known = _lookup(uid)
    return known.name if known else str(uid)
