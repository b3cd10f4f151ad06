"""Key templates: the keys they make of a delivery, which are always valid."""

from __future__ import annotations

import string
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import ConfigurationError
from headrace.model.keys import check_key
from headrace.sources.deliveries import Delivery
from headrace.sources.templates import KeyTemplate, token

EVENT = {
    "type": "payment_intent.succeeded",
    "id": "evt_1",
    "api": {"version": 3, "items": [{"sku": "a 1"}, {"sku": "b"}]},
    "live": True,
    "amount": 1.50,
    "nothing": None,
    "empty": "",
    "big": 123456789012345678901234567890,
}


def rendered(template: str, event: Any = EVENT, headers: Any = (), query: bytes = b"") -> str:
    body = event if isinstance(event, bytes) else msgspec.json.encode(event)
    return KeyTemplate(template).render(Delivery("stripe", headers, query, body))


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("stripe.{body.type}.{body.id}", "stripe.payment_intent_succeeded.evt_1"),
        ("{name}.{body.api.version}", "stripe.3"),
        ("{name}.v{body.api.version}-{body.id}", "stripe.v3-evt_1"),
        ("a.{body.api.items.0.sku}.{body.api.items.1.sku}", "a.a_1.b"),
        ("a.{body.api.items.2.sku}.{body.api.items.x}.{body.api.items.-1}", "a._._._"),
        ("a.{body.live}.{body.big}", "a.true.123456789012345678901234567890"),
        ("a.{body.nope}.{body.type.deeper}.{body.nothing}.{body.empty}", "a._._._._"),
        ("a.{body.api}.{body.api.items}", "a._._"),
        ("a.{header.X-GitHub-Event}.{header.nope}", "a.pull_request._"),
        ("a.{query.tenant}.{query.nope}", "a.acme_eu._"),
        ("fixed", "fixed"),
    ],
)
def test_a_value_in_braces_becomes_one_token(template: str, key: str) -> None:
    headers = [(b"X-GitHub-Event", b"pull_request")]
    assert rendered(template, headers=headers, query=b"tenant=first&tenant=acme.eu") == key


def test_a_number_keeps_its_digits() -> None:
    assert rendered("a.{body.0}.{body.1}", b"[1.50, 1e400]") == "a.1_50.1e400"


def test_the_hash_of_the_body_is_upper_case_hexadecimal() -> None:
    # echo -n '{"a":1}' | sha256sum
    assert rendered("{name}.{sha256}", b'{"a":1}') == (
        "stripe.015ABD7F5CC57A2DD94B7590F04AD8084273905EE33EC5CEBEAE62276A97F862"
    )


def test_a_value_that_is_too_long_is_replaced_by_its_hash() -> None:
    # head -c 97 /dev/zero | tr '\0' x | sha256sum
    assert token("x" * 96) == "x" * 96
    assert token("x" * 97) == "19A8F07EEB7F3D0C0B7377E37D72ECCDE144CEFEB44BEAC9C3227131A526688D"
    assert token("ä" * 49) != token("ä" * 48 + "ö")
    assert len(token("ä" * 49)) == 64


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a.b", "a_b"), ("*", "_"), (">", "_"), ("a>b*", "a_b_"), ("a b\tc\n", "a_b_c_"), ("\0", "_"), ("\ud800", "_"),
     ("ünï", "ünï"), (0, "0"), (-5, "-5"), (False, "false"), (None, "_"), ([], "_"), ({}, "_"), ("", "_")],
)  # fmt: skip
def test_characters_that_a_token_cannot_hold_are_replaced(value: Any, expected: str) -> None:
    assert token(value) == expected


@pytest.mark.parametrize(
    "template",
    ["", ".", "a.", ".a", "a..b", "*", "a.*", ">", "a.>", "{", "}", "a.{body.x", "a.body.x}", "{{name}}", "{}", "{nope}",
     "{body}", "{body.}", "{body..x}", "{body.x.}", "{header}", "{header.}", "{header.a b}", "{query}", "{query.}",
     "{name.x}", "{sha256.x}", "{Name}", "a\0b", "\ud800", ".".join(["{name}"] * 9), "x" * 300, "{name}.{body.x}."],
)  # fmt: skip
def test_a_template_that_makes_no_keys_is_refused_in_a_sentence(template: str) -> None:
    with pytest.raises(ConfigurationError, match="key template"):
        KeyTemplate(template)


PIECES = st.sampled_from(["{name}", "{sha256}", "{body.a}", "{body.b.0}", "{header.x}", "{query.q}", "lit", "-", ".x."])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=120),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)


@given(
    pieces=st.lists(PIECES, min_size=1, max_size=12),
    event=st.dictionaries(st.sampled_from("abc"), JSON) | JSON,
    header=st.binary(max_size=150),
    query=st.text(string.printable, max_size=150),
)
def test_the_key_is_valid_for_every_delivery(pieces: list[str], event: Any, header: bytes, query: str) -> None:
    try:
        template = KeyTemplate("".join(pieces))
    except ConfigurationError:
        return
    key = template.render(Delivery("hook", [(b"x", header)], f"q={query}".encode(), msgspec.json.encode(event)))
    assert check_key(key) == key
    assert key.count(".") == template.text.replace("{body.a}", "").replace("{body.b.0}", "").replace(
        "{header.x}", ""
    ).replace("{query.q}", "").count(".")
