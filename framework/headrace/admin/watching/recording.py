"""Settings as the audit log records them, without secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.model import conditions
from headrace.model.conditions import Condition
from headrace.model.conditions.selections import DeadLetterCriteria
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.model.text.masking import HIDDEN, masked, masked_push

MOST_SEQS = 100
"""The most seqs that an entry names one by one."""


def settings_of_stream(spec: StreamSpec) -> dict[str, Any]:
    """The settings of a new stream that are not the default."""
    return _given(spec, {"name"})


def settings_of_consumer(spec: ConsumerSpec) -> dict[str, Any]:
    """The settings of a new consumer that are not the default."""
    return {name: shown(name, value) for name, value in _given(spec, {"stream", "name"}).items()}


def settings_of_source(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a new source."""
    return {name: shown(name, value) for name, value in settings.items() if value is not None}


def differing(before: StreamSpec, after: StreamSpec) -> dict[str, tuple[Any, Any]]:
    """The settings of a stream that differ: {setting: (before, after)}."""
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    return {name: (value, new[name]) for name, value in old.items() if value != new[name]}


def shown(name: str, value: Any) -> Any:
    """A setting without its secrets."""
    if value is None:
        return None
    if name == "secrets":
        return [HIDDEN] * len(value)
    if name == "database":
        return masked(str(value))
    if name == "push":
        return masked_push(value if isinstance(value, Mapping) else msgspec.structs.asdict(value))
    return conditions.describe(value) if isinstance(value, Condition) else value


def selected(selection: msgspec.Struct | DeadLetterCriteria) -> dict[str, Any]:
    """The criteria of a selection of messages or dead letters."""
    criteria = msgspec.structs.asdict(selection) if isinstance(selection, msgspec.Struct) else selection
    details = {name: shown(name, value) for name, value in criteria.items() if value is not None}
    if "seqs" in details:
        details["seqs"] = first_seqs(details["seqs"])
    return details


def first_seqs(seqs: Sequence[int]) -> list[Any]:
    """The first seqs, at most `MOST_SEQS`, and a mark if there are more."""
    ordered: list[Any] = sorted(seqs)
    return ordered if len(ordered) <= MOST_SEQS else [*ordered[:MOST_SEQS], HIDDEN]


def _given(spec: msgspec.Struct, names: set[str]) -> dict[str, Any]:
    defaults = {field.name: field.default for field in msgspec.structs.fields(spec)}
    return {
        name: value
        for name, value in msgspec.structs.asdict(spec).items()
        if name not in names and value != defaults[name] and value not in (None, (), [])
    }
