"""Paths of the data directory, its contents, and the directory of the socket.

<data directory>/             "home": the directory that you named, or the default
    moved-to -> <server>      only for root, when the server's user can't enter the home
<server>/                     the home itself, or the directory it was moved to
    cluster/                  Postgres's own data directory
    new/<random>/             an unfinished cluster. One of a killed start is made again
    server.log                the server's log, kept below a size
    start.lock, server.lock   see `headrace.embedded.locks`
    users/<pid>-<random>      one locked file for each user, see `headrace.embedded.users`
    kept                      exists after an explicit start: the last user to leave does not stop it
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from headrace.embedded.os_user import OsUser, give_to_owner_of_parent, open_for_owner
from headrace.embedded.project_file import distrust, nearest_project
from headrace.model.errors import EmbeddedPostgresError

LOG_LIMIT = 10 * 1024 * 1024
LOG_REST = 1024 * 1024

_MOVED = "moved-to"


def default_data_dir() -> Path:
    """The data directory when none is named.

    `HEADRACE_DATA`. Otherwise `.headrace/postgres` beside the nearest `pyproject.toml`, from the
    working directory upward, see `headrace.embedded.project_file`. Otherwise `headrace/postgres` in the user's data directory
    (`XDG_DATA_HOME`, `~/.local/share`).
    """
    if named := os.environ.get("HEADRACE_DATA"):
        return Path(named).expanduser().absolute()
    project = nearest_project(Path.cwd())
    if project is not None:
        data = project.parent / ".headrace" / "postgres"
        _check_owner(data.parent, project)
        return data
    data_home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data_home).expanduser().absolute() / "headrace" / "postgres"


def _check_owner(directory: Path, project: Path) -> None:
    """Raise `EmbeddedPostgresError` if another user has made the directory. The server in it would be that
    user's. Data that root's processes make belong to the owner of the project.
    """
    if not directory.is_symlink() and not directory.exists():
        return
    status = directory.lstat()
    if status.st_uid == project.parent.stat().st_uid and not status.st_mode & stat.S_IWOTH:
        return
    reason = distrust(directory)
    if reason is not None:
        raise EmbeddedPostgresError(
            f"{directory} would have the data of the embedded Postgres, but {reason}. Remove it, or set HEADRACE_DATA to a"
            " directory of your own."
        )


@dataclass(frozen=True, slots=True)
class ServerDirectory:
    """The directory that holds the server's files."""

    path: Path

    @property
    def cluster(self) -> Path:
        return self.path / "cluster"

    @property
    def unfinished(self) -> Path:
        return self.path / "new"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def start_lock(self) -> Path:
        return self.path / "start.lock"

    @property
    def server_lock(self) -> Path:
        return self.path / "server.lock"

    @property
    def users(self) -> Path:
        return self.path / "users"

    @property
    def kept(self) -> Path:
        return self.path / "kept"

    def version(self) -> int | None:
        """The major version of the Postgres that made the cluster. None while there is no cluster."""
        try:
            return int((self.cluster / "PG_VERSION").read_text().strip())
        except (FileNotFoundError, NotADirectoryError):
            return None


def find_server_dir(home: Path) -> ServerDirectory:
    """The directory with the server's files: the data directory, or the one it was moved to. Creates nothing."""
    moved = home / _MOVED
    return ServerDirectory(Path(os.readlink(moved))) if moved.is_symlink() else ServerDirectory(home)


def nearest_existing(path: Path) -> Path:
    """The path itself, or the nearest directory above it that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


def make_server_dir(home: Path, os_user: OsUser) -> ServerDirectory:
    """Make the data directory, and another place for it when the server's user can't enter it."""
    _make_home(home, os_user)
    server_dir = find_server_dir(home)
    if server_dir.path == home and not server_dir.cluster.exists() and not os_user.can_execute(home):
        server_dir = _move(home, os_user)
    _make_directory(server_dir.path, _mode_for(os_user))
    _make_directory(server_dir.users, 0o700)
    return server_dir


def _make_home(home: Path, os_user: OsUser) -> None:
    if home.is_dir():
        return
    _make_parents(home.parent)
    if home.parent.name == ".headrace":
        ignored = home.parent / ".gitignore"
        if not ignored.exists():
            with open(open_for_owner(ignored, os.O_WRONLY), "w") as file:
                file.write("*\n")
    _make_directory(home, _mode_for(os_user))


def _make_parents(path: Path) -> None:
    if not path.is_dir():
        _make_parents(path.parent)
        path.mkdir(exist_ok=True)
        give_to_owner_of_parent(path)


def _mode_for(os_user: OsUser) -> int:
    # Another user's server must pass through on its way to the cluster, but need not list the
    # directory.
    return 0o700 if os_user.is_current else 0o711


def _make_directory(path: Path, mode: int) -> None:
    if not path.is_dir():
        path.mkdir(exist_ok=True)
        path.chmod(mode)  # the umask would reduce mkdir's own mode
        give_to_owner_of_parent(path)


def _move(home: Path, os_user: OsUser) -> ServerDirectory:
    """Choose another place. The link is the decision. Of several processes, the first to make it wins."""
    place = _make_place(home, os_user)
    (place / "moved-from").write_text(f"{home}\n")
    try:
        (home / _MOVED).symlink_to(place)
    except FileExistsError:
        (place / "moved-from").unlink()
        place.rmdir()
    return find_server_dir(home)


def _make_place(home: Path, os_user: OsUser) -> Path:
    temporary = Path(tempfile.gettempdir()).resolve()
    # Temporary data stays in a temporary directory. Any other data must survive a reboot.
    bases = [Path("/var/lib/headrace"), temporary]
    if home.is_relative_to(temporary):
        bases.reverse()
    for base in bases:
        place = base / f"headrace-data-{_readable_name(home)}-{secrets.token_hex(4)}"
        try:
            if not base.is_dir():
                base.mkdir(parents=True)
                base.chmod(0o755)
            place.mkdir(mode=0o700)
        except OSError:
            continue
        place.chmod(_mode_for(os_user))
        if os_user.can_execute(place):
            return place
        place.rmdir()
    raise EmbeddedPostgresError(
        f"Postgres runs as the user {os_user.name!r}, which can't enter {home}, {bases[0]} or {bases[1]}. "
        "Set HEADRACE_DATA to a directory that this user can enter."
    )


def _readable_name(home: Path) -> str:
    return next((part for part in reversed(home.parts) if part not in {"postgres", ".headrace", "/"}), "root")


def socket_directory(home: Path, os_user: OsUser) -> Path:
    """The directory of the server's socket.

    It is short, since a socket's path is limited to about 100 characters, and the same for all
    processes that name the same data directory.
    """
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    return Path("/tmp") / f"headrace-{os_user.uid}-{digest}"


def make_private_directory(path: Path, os_user: OsUser, mode: int) -> None:
    """Make a directory at a well-known path in a place where every user can write.

    Raises `EmbeddedPostgresError` when it exists and belongs to another user, because the owner of
    a socket's directory decides which program answers on it.
    """
    try:
        path.mkdir(mode=0o700)
        os_user.own(path)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {os_user.uid, os.geteuid()}:
            raise EmbeddedPostgresError(
                f"The directory {path}, which Postgres needs for its socket, belongs to another user. Remove it."
            ) from None
        os_user.own(path)
    path.chmod(mode)


def trim_log(log: Path) -> None:
    """Keep the log small. The server appends at the current end of the file, so this is safe at any time."""
    try:
        if log.stat().st_size <= LOG_LIMIT:
            return
    except FileNotFoundError:
        return
    with log.open("r+b") as file:
        file.seek(-LOG_REST, os.SEEK_END)
        rest = file.read()
        _old(log).write_bytes(rest)
        file.truncate(0)


def remove_server_dir(server_dir: ServerDirectory, home: Path) -> None:
    """Delete what this package has put into the data directory, and the directory itself if it is empty then."""
    for path in (server_dir.unfinished, server_dir.users):
        shutil.rmtree(path, ignore_errors=True)
    files = (server_dir.log, _old(server_dir.log), server_dir.server_lock, server_dir.kept, server_dir.start_lock)
    for path in (*files, server_dir.path / "moved-from", home / _MOVED):
        path.unlink(missing_ok=True)
    for directory in {server_dir.path, home}:
        with contextlib.suppress(OSError):  # it contains other files
            directory.rmdir()


def _old(log: Path) -> Path:
    return log.with_suffix(".log.old")
