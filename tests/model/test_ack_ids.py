"""Ack ids: a sealed id can be opened, and an altered, cut or invented one is refused."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.ack_ids import AckId, AckIds, InvalidAckId
from headrace.model.errors import InvalidInput

KEYS = st.binary(min_size=32, max_size=32)
CONSUMERS = st.integers(1, 2**31 - 1)
LEASES = st.integers(1, 2**63 - 1)
SEQS = st.integers(1, 2**63 - 1)
ATTEMPTS = st.integers(1, 2**31 - 1)
SIZES = st.integers(1, 10_000)
FIELDS = st.tuples(CONSUMERS, LEASES, SEQS, ATTEMPTS, SIZES)
ALPHABET = string.ascii_letters + string.digits + "-_"

ids = AckIds(b"k" * 32)


@given(KEYS, FIELDS)
def test_a_sealed_id_is_opened(key: bytes, fields: tuple[int, int, int, int, int]) -> None:
    sealed = AckIds(key).seal(*fields)
    assert AckIds(key).open(sealed) == AckId(*fields), "another server with the same key reads it"
    assert set(sealed) <= set(ALPHABET), "it may stand in a URL, and in JSON, as it is"


@given(FIELDS)
def test_all_ids_have_one_length(fields: tuple[int, int, int, int, int]) -> None:
    assert len(ids.seal(*fields)) == len(ids.seal(1, 1, 1, 1, 1))


@given(FIELDS, FIELDS)
def test_two_deliveries_never_share_an_id(
    one: tuple[int, int, int, int, int], other: tuple[int, int, int, int, int]
) -> None:
    assert (ids.seal(*one) == ids.seal(*other)) == (one == other)


@given(FIELDS, st.data())
def test_no_character_can_be_altered(fields: tuple[int, int, int, int, int], data: st.DataObject) -> None:
    sealed = ids.seal(*fields)
    place = data.draw(st.integers(0, len(sealed) - 1))
    other = data.draw(st.one_of(st.sampled_from(ALPHABET), st.characters()).filter(lambda c: c != sealed[place]))
    refused(sealed[:place] + other + sealed[place + 1 :])


@given(FIELDS, st.data())
def test_nothing_can_be_cut_off_put_in_or_swapped(fields: tuple[int, int, int, int, int], data: st.DataObject) -> None:
    sealed = ids.seal(*fields)
    start = data.draw(st.integers(0, len(sealed)))
    end = data.draw(st.integers(start, len(sealed)))
    if start != end:
        refused(sealed[:start] + sealed[end:])
    refused(sealed[:start] + data.draw(st.text(min_size=1, max_size=4)) + sealed[start:])
    turned = sealed[:start] + sealed[start:end][::-1] + sealed[end:]
    if turned != sealed:
        refused(turned)


@given(FIELDS, FIELDS, st.integers(1, 35))
def test_two_ids_can_not_be_combined_into_a_third(
    one: tuple[int, int, int, int, int], other: tuple[int, int, int, int, int], cut: int
) -> None:
    first, second = ids.seal(*one), ids.seal(*other)
    spliced = first[:cut] + second[cut:]
    if spliced not in (first, second):
        refused(spliced)


@given(KEYS, KEYS, FIELDS)
def test_the_id_of_another_database_is_refused(
    key: bytes, another: bytes, fields: tuple[int, int, int, int, int]
) -> None:
    if key != another:
        with pytest.raises(InvalidAckId):
            AckIds(another).open(AckIds(key).seal(*fields))


@given(st.one_of(st.text(), st.text(ALPHABET, min_size=48, max_size=48), st.text(min_size=48, max_size=48)))
def test_an_invented_id_is_refused(text: str) -> None:
    refused(text)


@pytest.mark.parametrize("thing", [None, 7, 1.5, True, b"x" * 48, ["x"], {"ack_id": "x"}])
def test_an_id_that_is_no_text_is_refused(thing: object) -> None:
    refused(thing)


def test_attempts_and_sizes_that_exceed_their_field_are_stored_as_its_maximum() -> None:
    opened = ids.open(ids.seal(1, 2, 3, 2**40, 2**20))
    assert (opened.attempt, opened.size) == (2**32 - 1, 2**16 - 1)


def test_the_error_of_a_refused_id_says_what_would_be_right_and_repeats_little_of_it() -> None:
    with pytest.raises(InvalidInput, match="send those that came with the messages") as caught:
        ids.open("x" * 100_000)
    assert len(str(caught.value)) < 200


def refused(thing: object) -> None:
    with pytest.raises(InvalidAckId):
        ids.open(thing)  # type: ignore[arg-type]
