"""The steps of a plan: one for each object that is created, changed or deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from headrace.admin.configuration.effects import Effect, effect_of
from headrace.admin.configuration.fields import readable, setting_of
from headrace.model.tokens import NewToken
from headrace.model.watching import audit
from headrace.store import Executor, Kind

Action = Literal["create", "change", "delete"]


class FieldChange(msgspec.Struct, frozen=True):
    """A setting that changes. Secrets are masked.

    Attributes:
        before: its value now. None for a new object.
        effect: what the change means, and when it takes effect.
    """

    name: str
    before: Any
    after: Any
    effect: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one object.

    Attributes:
        object: the names that lead to it, such as those of a stream and of its consumer.
        effect: what the change means as a whole.
        destructive: whether it removes data or access, so that it needs a confirmation.
        guarded: why it needs `allow_delete`. None if it doesn't.
        database: the further database in which it happens. None for the configuration database.
    """

    action: Action
    kind: Kind | Literal["database"]
    object: tuple[str, ...]
    fields: tuple[FieldChange, ...] = ()
    effect: str = ""
    destructive: bool = False
    guarded: str | None = None
    database: str | None = None


Perform = Callable[[Executor], Awaitable[NewToken | None]]


@dataclass(frozen=True)
class Step:
    """A change, and what performs it in a transaction."""

    change: Change
    perform: Perform = field(compare=False)


_RECORDED_AS = {"create": "create", "change": "edit", "delete": "delete"}
_OF_GRANTS = {"create": "grant", "delete": "revoke"}
_OF_DATABASES = {"create": "add", "change": "edit"}


def recorded(change: Change) -> audit.Change:
    """The entry of the audit log about a change. It has the names that the same change has elsewhere."""
    names = {"grant": _OF_GRANTS, "database": _OF_DATABASES}.get(change.kind, _RECORDED_AS)
    details: dict[str, Any] = {"configuration": True}
    if change.kind == "grant":
        role, privilege, stream = change.object
        details |= {"privilege": privilege, "streams": [stream] if stream else "all"}
        return audit.Change(
            action=f"grant.{names[change.action]}", kind="grant", name=role, stream=stream or None, details=details
        )
    if change.action == "create":
        details["settings"] = {one.name: one.after for one in change.fields}
    elif change.action == "change":
        details["changes"] = {one.name: (one.before, one.after) for one in change.fields}
    of = change.object[0] if change.kind in ("stream", "consumer") else None
    return audit.Change(
        action=f"{change.kind}.{names[change.action]}",
        kind=change.kind,
        name=change.object[-1],
        stream=of,
        details=details,
    )


def _readable(kind: Kind, name: str, value: Any) -> Any:
    setting = setting_of(kind, name)
    return value if setting is None or value is None else readable(setting, value)


def creation(
    kind: Kind, names: tuple[str, ...], settings: Mapping[str, Any], perform: Perform, effect: str = ""
) -> Step:
    """The step that creates an object with these settings."""
    fields = tuple(FieldChange(name, None, _readable(kind, name, value)) for name, value in settings.items())
    return Step(Change(action="create", kind=kind, object=names, fields=fields, effect=effect), perform)


def alteration(
    kind: Kind, names: tuple[str, ...], differing: Mapping[str, tuple[Any, Any]], perform: Perform
) -> Step | None:
    """The step that changes an object, {setting: (before, after)}. None if nothing differs."""
    if not differing:
        return None
    effects: dict[str, Effect] = {name: effect_of(kind, name, *values) for name, values in differing.items()}
    fields = tuple(
        FieldChange(name, _readable(kind, name, before), _readable(kind, name, after), effects[name].text)
        for name, (before, after) in differing.items()
    )
    destructive = any(effect.destructive for effect in effects.values())
    return Step(Change(action="change", kind=kind, object=names, fields=fields, destructive=destructive), perform)
