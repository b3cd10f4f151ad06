"""The field of a request that an error of the model is about."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from headrace.model.errors import ConfigurationError, InvalidFilter, InvalidInput, InvalidKey
from headrace.model.push import Push
from headrace.model.settings import settings_of
from headrace.model.specs import ConsumerSpec, StreamSpec
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.webhook import WebhookSpec

_SPECS = (ConsumerSpec, StreamSpec, WebhookSpec, PostgresSpec)

_OLDER = {"filter": ("key_pattern",)}
"""Older names of query parameters."""

_CONDITION = ("where", "filters")
_SPOKEN = {"condition": _CONDITION, "regex": _CONDITION, "pattern": _CONDITION}
"""Fields for words in errors of the database about conditions."""

_WORD = re.compile(r"[a-z_]+")


def field_of(error: InvalidInput | ConfigurationError, sent: Collection[str], known: Collection[str]) -> str | None:
    """Return the name of the field under which the client knows the invalid value. None if the
    error is about no single field.

    Args:
        sent: the fields and parameters that the request has.
        known: all those that it could have.
    """
    if error.field is not None:
        names = names_of(error.field)
        return _first(names, sent) or _first(names, known) or names[0]
    words = _WORD.findall(str(error))  # public: a search for names of fields
    usual = [name for word in words for name in _SPOKEN.get(word, ())]
    if isinstance(error, InvalidKey):
        usual.append("key")
    elif isinstance(error, InvalidFilter):
        usual += ["where", "filter"]
    return _first(words, sent) or _first(usual, sent) or _first(words, known)


def names_of(field: str) -> list[str]:
    """Return the names of a setting in the API, the usual one first. Those of other fields are the names themselves."""
    names = [
        name
        for spec in _SPECS
        for setting in settings_of(spec).values()
        if field in (setting.name, *setting.names)
        for name in setting.names
    ]
    push = ["push"] if field in settings_of(Push) else []
    return list(dict.fromkeys([*(names or [field]), *_OLDER.get(field, ()), *push]))


def _first(names: Sequence[str], among: Collection[str]) -> str | None:
    return next((name for name in names if name in among), None)
