"""The figures and settings of the console, from their one description."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.model.conditions import Condition
from headrace.model.settings import Setting, settings_of
from headrace.model.specs import Backoff, ConsumerSpec, StreamSpec
from headrace.model.watching.live import ROWS, figures

_AT_CREATION = "one_message_per_key"
_KINDS = {int: "number", float: "number", bool: "boolean", Condition: "text", Backoff: "delays"}
"""The kinds of inputs of settings that are no lists or choices."""


def described(module: str) -> str:
    """Fill in the text of the module of descriptions."""
    found = {
        kind: [{"name": name, **msgspec.structs.asdict(figure)} for name, figure in figures(row).items()]
        for kind, row in ROWS.items()
    }
    settings = {"stream": _settings(StreamSpec), "consumer": _settings(ConsumerSpec)}
    for name, values in (("FIGURES", found), ("SETTINGS", settings)):
        module = module.replace(f"{name} = {{}}", f"{name} = {msgspec.json.encode(values).decode()}")
    return module


def _settings(spec: type[msgspec.Struct]) -> list[dict[str, Any]]:
    """The settings that a form can change."""
    return [
        {
            "name": one.name,
            "about": one.details.replace("`", ""),
            "kind": kind,
            "choices": ["true", "false"] if kind == "boolean" else one.choices,
            "unit": None if kind == "delays" else one.unit,
            "optional": one.optional,
        }
        for one in settings_of(spec).values()
        if not one.fixed and one.name != _AT_CREATION and (kind := _kind(one)) is not None
    ]


def _kind(setting: Setting) -> str | None:
    """The kind of the input of a setting. None for one with a form of its own."""
    if setting.choices:
        return "choice"
    return "list" if setting.many else _KINDS.get(setting.kind)
