"""The JSON Schema for editors has every setting, and accepts what `apply` accepts."""

from __future__ import annotations

import jsonschema_rs
import pytest

from headrace.admin.configuration import json_schema
from headrace.admin.configuration.fields import SPECS, fields_of
from headrace.model.settings import settings_of

SCHEMA = json_schema()
STREAM = SCHEMA["properties"]["streams"]["additionalProperties"]["properties"]
CONSUMER = STREAM["consumers"]["additionalProperties"]["properties"]


@pytest.mark.parametrize("owner", SPECS)
def test_each_setting_is_a_field(owner: str) -> None:
    settings = {one.name for one in fields_of(owner).values()}
    assert settings == set(settings_of(SPECS[owner])) - {"name", "stream"}


def test_fields_have_their_description_and_limits() -> None:
    assert "not settled" in CONSUMER["max_ack_pending"]["description"]
    assert CONSUMER["max_ack_pending"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 1_000_000}


@pytest.mark.parametrize(
    ("document", "valid"),
    [
        ({"streams": {"a": None, "b": {"retain_up_to": "3d", "consumers": {"c": {"filter": "a.>", "backoff": ["1s", 2]}}}}}, True),
        ({"streams": {"a": {"consumers": {"c": {"push": {"url": "${URL}", "concurrency": [1, 2]}, "max_deliver": -1}}}}}, True),
        ({"streams": {"a": {"consumers": {"c": {"max_deliver": "${N}", "max_waiting": None}}}}}, True),
        ({"sources": {"s": {"kind": "webhook", "stream": "a", "secrets": ["${S}"], "signature": "stripe"}}}, True),
        ({"sources": {"s": {"kind": "postgres", "stream": "a", "tables": ["public.a"], "columns": {"public.a": ["id"]}}}}, True),
        ({"tokens": {"t": {"scopes": ["publish:a"]}}, "grants": {"r": {"publish": "all", "consume": ["a"]}}}, True),
        ({"databases": {"eu": {"url_from": "env:EU", "grants": {"r": {"admin": "all"}}}}, "streams": {"a": {"database": "eu"}}}, True),
        ({"databases": {"eu": {"url_from": "postgresql://h/d"}}}, False),
        ({"streams": {"a": {"retain_upto": "3d"}}}, False),
        ({"streams": {"a": {"retention": "never"}}}, False),
        ({"streams": {"a": {"consumers": {"c": {"max_deliver": 0}}}}}, False),
        ({"sources": {"s": {"kind": "webhook"}}}, False),
        ({"tokens": {"t": {"scopes": ["everything"]}}}, False),
    ],
)  # fmt: skip
def test_it_accepts_what_a_file_may_say(document: object, valid: bool) -> None:
    assert jsonschema_rs.validator_for(SCHEMA).is_valid(document) is valid
