"""The options of publish are described once, and what is derived from the description agrees with it."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any, get_type_hints

import pytest

from headrace import App
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.messages.publish_options import (
    PLAIN,
    PublishKeywords,
    PublishManyKeywords,
    PublishOptions,
    due,
    encoded,
)

NOW = datetime(2031, 5, 1, tzinfo=UTC)


def test_the_keywords_for_type_checkers_are_the_fields() -> None:
    fields = get_type_hints(PublishOptions)
    assert get_type_hints(PublishKeywords) == fields
    many = get_type_hints(PublishManyKeywords)
    assert {name.removesuffix("s") for name in many} == set(fields)
    assert all(many[name] == fields[name] for name in many.keys() & fields.keys())


def test_the_docstring_of_publish_describes_each_option() -> None:
    text = inspect.getdoc(App.publish) or ""
    assert [name for name in PublishOptions.__struct_fields__ if f"{name}: " not in text] == []


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"message_id": ""}, "message_id"),
        ({"message_id": "é" * 129}, "message_id"),
        ({"message_id": "a\0"}, "message_id"),
        ({"message_id": "\ud800"}, "message_id"),
        ({"message_id": 5}, "message_id"),
        ({"unique_key": "x" * 257}, "unique_key"),
        ({"unique_key": "x", "message_id": "y"}, "unique_key"),
        ({"unique_while": "waiting"}, "unique_while"),
        ({"unique_key": "x", "unique_while": "once"}, "unique_while"),
    ],
)
def test_invalid_options_are_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        PublishOptions.of(**options)
    assert refused.value.field == field


def test_a_delay_becomes_a_time_and_a_time_without_a_zone_is_utc() -> None:
    assert PublishOptions.of(NOW, delay="5m") == PublishOptions(deliver_at=NOW + timedelta(minutes=5))
    assert PublishOptions.of(deliver_at=NOW.replace(tzinfo=None)) == PublishOptions(deliver_at=NOW)
    with pytest.raises(ConfigurationError, match="choose one"):
        PublishOptions.of(delay=1, deliver_at=NOW)


def test_options_of_many_are_one_for_all_or_one_for_each() -> None:
    assert PublishOptions.of_many(3) is PLAIN
    assert PublishOptions.of_many(2, NOW, delay=60, message_ids=[None, None]) == PublishOptions.of(NOW, delay=60)
    each = PublishOptions.of_many(3, NOW, delay=60, unique_keys=["x", None, "y"], unique_while="waiting")
    assert isinstance(each, list)
    assert [one.unique_key for one in each] == ["x", None, "y"]
    assert [one.unique_while for one in each] == ["waiting", "pending", "waiting"]
    assert due(each) == NOW + timedelta(seconds=60)
    with pytest.raises(InvalidInput, match="3 messages and 1 message_ids"):
        PublishOptions.of_many(3, message_ids=["x"])
    with pytest.raises(InvalidInput, match="needs a unique key"):
        PublishOptions.of_many(1, unique_keys=[None], unique_while="waiting")


def test_a_time_to_live_is_moved_into_the_headers_and_the_rest_is_sent() -> None:
    headers, rest = PublishOptions(expires_in="1m", message_id="x").in_headers('{"a":1}')
    assert (headers, rest) == ('{"a":1,"headrace-expires-in":60}', PublishOptions(message_id="x"))
    assert encoded(rest) == '{"message_id":"x"}'
    assert PublishOptions(expires_in=1).in_headers(None)[1] is PLAIN
    assert encoded([PLAIN, PublishOptions()]) is None
    assert encoded([PLAIN, rest]) == '[{},{"message_id":"x"}]'
