"""Contexts: named servers and databases, and which of them is in use.

They are stored in `$XDG_CONFIG_HOME/headrace/contexts.json`. Only its owner can read the file, because
it contains tokens.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from headrace.cli.errors import CannotCreate, UnreadableInput
from headrace.embedded.project_file import distrust
from headrace.model.errors import ConfigurationError, InvalidInput

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A server with its token, or a database."""

    server: str | None = None
    token: str | None = None
    ca_file: str | None = None
    database: str | None = None

    def __post_init__(self) -> None:
        if (self.server is None) == (self.database is None):
            raise ValueError("a context has either a server or a database")


class Contexts(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """All contexts, and the name of the one in use."""

    contexts: dict[str, Context] = {}
    current: str | None = None

    def add(self, name: str, context: Context) -> None:
        """Add a context. Raises `InvalidInput` if the name is invalid or taken."""
        if not _NAME.fullmatch(name):
            raise InvalidInput(f"The context name {name!r} is invalid. Use up to 64 letters, digits, '-', '_' and '.'.")
        if name in self.contexts:
            raise InvalidInput(f"The context {name!r} exists. Remove it first, or choose another name.")
        self.contexts[name] = context

    def use(self, name: str | None) -> None:
        """Use a context from now on, or none. Raises `UnreadableInput`."""
        if name is not None:
            self._require_known(name)
        self.current = name

    def remove(self, name: str) -> None:
        """Remove a context. If it is in use, no context is in use afterwards. Raises `UnreadableInput`."""
        self._require_known(name)
        del self.contexts[name]
        if self.current == name:
            self.current = None

    def _require_known(self, name: str) -> None:
        if name not in self.contexts:
            known = f"The contexts are: {', '.join(sorted(self.contexts))}." if self.contexts else "There are none."
            raise UnreadableInput(f"The context {name!r} does not exist. {known}")


def contexts_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file that stores the contexts."""
    base = environment.get("XDG_CONFIG_HOME", "")
    home = Path(
        base if base.startswith("/") else os.path.expanduser("~/.config")
    )  # expanduser doesn't fail, unlike Path.home()
    return home / "headrace" / "contexts.json"


def read(environment: Mapping[str, str] = os.environ) -> Contexts:
    """Read all contexts. Raises `ConfigurationError` if the file can't be read or is broken."""
    file = contexts_file(environment)
    try:
        reason = distrust(file, environment, group=True)
        if reason is not None:
            raise ConfigurationError(
                f"The contexts in {file} choose your servers, and {reason}, so they are not used. Correct the file's owner and mode:"
                f" chown $USER {file} and chmod 600 {file}."
            )
        _hide(file)
        found = msgspec.json.decode(file.read_bytes(), type=Contexts)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise ConfigurationError(f"The contexts in {file} can't be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ConfigurationError(
            f"The file {file} is invalid: {error}. Correct it, or remove it and add the contexts again."
        ) from error
    if found.current is not None and found.current not in found.contexts:
        raise ConfigurationError(
            f"The file {file} is invalid: the context in use, {found.current!r}, does not exist. Correct the file, or remove it and add"
            " the contexts again."
        )
    return found


def _hide(file: Path) -> None:
    """Let only the owner read the file, if a copy or an editor has changed that, since it contains tokens."""
    status = file.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o077:
        with suppress(OSError):
            file.chmod(0o600)


def in_use(environment: Mapping[str, str] = os.environ) -> Context | None:
    """Return the context in use, or None. Raises `ConfigurationError`."""
    found = read(environment)
    return None if found.current is None else found.contexts[found.current]


def write(contexts: Contexts, environment: Mapping[str, str] = os.environ) -> None:
    """Store the contexts atomically. A reader sees either the old or the new ones. Raises `CannotCreate`."""
    file = contexts_file(environment)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # only its owner can read it
        try:
            with open(descriptor, "wb") as draft:
                draft.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
                draft.flush()
                os.fsync(draft.fileno())
            os.replace(name, file)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise CannotCreate(f"The contexts can't be stored in {file}: {error.strerror}.") from error
