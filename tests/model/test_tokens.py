"""Tokens: their format, and the calls that their scopes permit."""

from __future__ import annotations

import string
from datetime import timedelta

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.model.tokens import (
    MOST_SCOPES,
    NEEDS,
    Need,
    Scope,
    allows,
    check_lifetime,
    check_name,
    digest,
    mint,
    parse,
    parse_all,
)

BASE62 = set(string.ascii_letters + string.digits)
STREAM_LETTERS = string.ascii_lowercase + string.digits + "-_"

stream_names = st.text(STREAM_LETTERS, min_size=1, max_size=48).filter(lambda name: name[0] not in "-_")
# Few streams, so that calls often use streams that scopes name. Some names are prefixes of others.
streams = st.sampled_from(["orders", "orders2", "order", "admin", "publish", "o"])
needs = st.sampled_from(NEEDS)
scopes = st.builds(Scope, needs, st.none() | streams)


def is_scope(text: str) -> bool:
    """A second, slow implementation of the grammar."""
    words = text.split(":")
    if len(words) > 2 or words[0] not in ("publish", "consume", "admin"):
        return False
    return len(words) == 1 or (
        1 <= len(words[1]) <= 48 and all(c in STREAM_LETTERS for c in words[1]) and words[1][0] not in "-_"
    )


def opened(held: list[Scope]) -> set[tuple[Need, str | None]]:
    """Every call that the scopes permit, checked one by one."""
    found: set[tuple[Need, str | None]] = set()
    for one in held:
        actions = NEEDS if one.action == "admin" else (one.action,)
        places = (
            [one.stream] if one.stream is not None else [None, "orders", "orders2", "order", "admin", "publish", "o"]
        )
        found |= {(action, place) for action in actions for place in places}
    return found


@given(st.lists(scopes, max_size=4), needs, st.none() | streams)
def test_scopes_permit_what_they_name_and_nothing_else(held: list[Scope], need: Need, stream: str | None) -> None:
    assert allows(frozenset(map(str, held)), need, stream) == ((need, stream) in opened(held))


def test_a_scope_for_one_stream_is_not_enough_for_a_call_about_no_one_stream() -> None:
    assert not allows({"admin:orders"}, "admin", None)
    assert not allows({"publish:orders"}, "publish", None)
    assert allows({"publish"}, "publish", None)


@given(needs, st.none() | stream_names)
def test_every_scope_is_read_as_it_is_written(action: Need, stream: str | None) -> None:
    scope = Scope(action, stream)
    assert parse(str(scope)) == scope


@given(st.text(st.sampled_from("admin:publishconsumeorders*>.-_A é\n"), max_size=60) | st.text(max_size=10))
@example("publish:")
@example("publish:orders\n")
@example("publish\n")
@example("publish:orders:x")
@example("admin:" + "x" * 49)
@example(":orders")
@example("publish:*")
def test_anything_else_is_refused_in_one_sentence(text: str) -> None:
    if is_scope(text):
        assert str(parse(text)) == text
        return
    with pytest.raises(InvalidInput) as caught:
        parse(text)
    said = str(caught.value)
    assert "\n" not in said
    assert said[0].isupper()
    assert said[-1] == "."


def test_scopes_are_kept_each_once_and_in_order() -> None:
    assert parse_all(["publish:b", "consume", "publish:a", "consume"]) == ("consume", "publish:a", "publish:b")


@pytest.mark.parametrize("given_", [[], [f"publish:s{n}" for n in range(MOST_SCOPES + 1)], "publish", [7]])
def test_a_token_has_some_scopes_and_not_too_many(given_: list[str]) -> None:
    with pytest.raises(InvalidInput):
        parse_all(given_)


def test_a_token_is_made_of_its_id_and_its_secret() -> None:
    minted = mint()
    prefix, token_id, secret = minted.text.split("_")
    assert (prefix, token_id, len(token_id), len(secret)) == ("hr", minted.id, 12, 40)
    assert set(token_id + secret) <= BASE62
    assert digest(minted.text) == minted.digest


def test_no_two_tokens_are_the_same() -> None:
    minted = [mint() for _ in range(1000)]
    assert len({one.id for one in minted}) == len({one.digest for one in minted}) == 1000


@given(st.integers(0, 55), st.characters())
def test_an_altered_token_has_another_digest(place: int, char: str) -> None:
    text = mint().text
    place %= len(text)
    altered = text[:place] + char + text[place + 1 :]
    assume(altered != text and char.isprintable())
    assert digest(altered) != digest(text)


@pytest.mark.parametrize("name", ["ci", "Prod-2", "anna@example.com", "a" * 64])
def test_a_name_is_taken_as_it_is(name: str) -> None:
    assert check_name(name) is name


@pytest.mark.parametrize("name", ["", "-x", "a b", "a" * 65, "ü", "a\n", "a/b"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="token name"):
        check_name(name)


def test_a_lifetime_is_some_time_and_no_eternity() -> None:
    assert check_lifetime(None) is None
    assert check_lifetime("30d") == 30 * 86400
    assert check_lifetime(timedelta(hours=1)) == 3600
    for impossible in (0, "0s", "40000d", 1e300):
        with pytest.raises(InvalidInput, match="100 years"):
            check_lifetime(impossible)
    with pytest.raises(ConfigurationError, match="expires_in"):
        check_lifetime("soon")
