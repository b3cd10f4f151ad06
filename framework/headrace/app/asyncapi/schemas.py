"""JSON Schemas of payload types, for the components of an AsyncAPI document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.model.errors import ConfigurationError
from headrace.model.text.pydantic_json import has_model

_REFERENCE = "#/components/schemas/{name}"
_PYDANTIC_REFERENCE = "#/components/schemas/{model}"

Schema = dict[str, Any]


def schemas_of(types: Iterable[Any]) -> tuple[list[Schema], Schema]:
    """Return a schema for each type, and the components that they refer to.

    The types of msgspec and those of pydantic are described by their own libraries.

    Raises:
        ConfigurationError: a Struct and a model have the same name and differ.
    """
    kinds = list(types)
    models = [place for place, kind in enumerate(kinds) if has_model(kind)]
    others = [place for place in range(len(kinds)) if place not in models]
    described, components = msgspec.json.schema_components([kinds[place] for place in others], ref_template=_REFERENCE)
    found: dict[int, Schema] = dict(zip(others, described, strict=True))
    if models:
        schemas, more = _of_models([kinds[place] for place in models])
        found.update(zip(models, schemas, strict=True))
        _join(components, more)
    return [found[place] for place in range(len(kinds))], components


def _of_models(kinds: list[Any]) -> tuple[list[Schema], Schema]:
    from pydantic import TypeAdapter

    adapters = [(place, "validation", TypeAdapter(kind)) for place, kind in enumerate(kinds)]
    schemas, more = TypeAdapter.json_schemas(adapters, ref_template=_PYDANTIC_REFERENCE)  # type: ignore[arg-type]
    return [schemas[place, "validation"] for place in range(len(kinds))], dict(more.get("$defs", {}))


def _join(components: Schema, more: Mapping[str, Any]) -> None:
    for name, schema in more.items():
        if components.setdefault(name, schema) != schema:
            raise ConfigurationError(f"Two payload types are called {name!r} and differ: rename one of them.")
