"""The audit log: which change was made, when, and in whose name."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Via = Literal["http", "console", "cli", "app"]
"""How a change was made: by a request of the HTTP API, by one with a session of the console or a proxy's sign-in, by a
command with a database, or by code that uses `app.admin`."""

MAX_DETAILS = 8_000
"""The largest size of an entry's details in bytes, as JSON. Larger values are left out."""

KEPT_SECONDS = 90 * 86_400
"""How long entries are kept, in seconds."""

KEPT_ENTRIES = 100_000
"""How many entries are kept, the newest ones."""

_LEFT_OUT = "left out, since it is too large"


class Actor(msgspec.Struct, frozen=True):
    """In whose name changes are made.

    Attributes:
        name: the name of the token, of the user of the system, or as a proxy gives it. None if it isn't known.
    """

    name: str | None = None
    via: Via = "app"


class AuditObject(msgspec.Struct, frozen=True):
    """The object that was changed."""

    kind: Annotated[
        str,
        Meta(
            description="`stream`, `consumer`, `source`, `schedule`, `token`, `database`, `grant`, `message` or `job`."
        ),
    ]
    name: str


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded change."""

    id: Annotated[str, Meta(description="Later entries have a larger number.")]
    at: datetime
    actor: Annotated[
        str | None,
        Meta(
            description="The name of the token, of the system's user of the command, or of the proxy's user. null if it isn't known."
        ),
    ]
    via: Annotated[
        Via,
        Meta(
            description="`http` for a request, `console` for one with a session of the console or a proxy's sign-in, `cli` for a command with a database, `app` for code."
        ),
    ]
    role: Annotated[str, Meta(description="The role of the database session, which no client chooses.")]
    action: Annotated[str, Meta(description="The kind of change.", examples=["consumer.seek"])]
    stream: Annotated[str | None, Meta(description="The stream of the change, if it has one.")]
    object: AuditObject
    details: Annotated[dict[str, Any], Meta(description="Arguments and results. Secrets are masked.")]

    @property
    def place(self) -> int:
        """The place in the list, which begins with the newest entry."""
        return int(self.id)


class Change(msgspec.Struct, kw_only=True):
    """A change that is to be recorded, see `AuditEntry`.

    Attributes:
        skipped: whether nothing was changed, so that there is no entry.
    """

    action: str
    kind: str
    name: str
    stream: str | None = None
    details: dict[str, Any] = {}
    skipped: bool = False

    def encoded(self) -> str:
        """The details as JSON of at most `MAX_DETAILS` bytes. The largest values are left out first."""
        given = msgspec.to_builtins({name: value for name, value in self.details.items() if value is not None})
        text = msgspec.json.encode(given)
        for name in sorted(given, key=lambda one: len(msgspec.json.encode(given[one])), reverse=True):
            if len(text) <= MAX_DETAILS:
                break
            given[name] = _LEFT_OUT
            text = msgspec.json.encode(given)
        return text.decode() if len(text) <= MAX_DETAILS else "{}"
