"""Decoding of pgoutput's bytes. Everything a server may send is decoded, and all else raises one kind of error."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.sources.postgres.pgoutput import messages as m
from headrace.sources.postgres.pgoutput.decoder import DecodeError, Decoder
from headrace.sources.postgres.pgoutput.short_changes import MAX_MISSES, ShortChangeDecoder
from tests.sources.postgres import wire

uint8 = st.integers(0, 2**8 - 1)
uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
times = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
schemas = names.filter(bool)


def texts(min_size: int, max_size: int) -> st.SearchStrategy[bytes]:
    """The text of a value, which never has a NUL, and often has what is between values."""
    other = st.sampled_from([b"t", b"n", b"u", b"N", b"O", b"I", b"\1", b"\xff"])
    return st.lists(st.integers(1, 255).map(wire.int8) | other, min_size=min_size, max_size=max_size).map(b"".join)


rows: st.SearchStrategy[m.Row] = st.lists(
    st.one_of(
        st.none(), st.just(m.UNCHANGED), texts(0, 20), st.sampled_from([250, 255, 256, 300]).map(lambda n: b"t" * n)
    ),
    max_size=6,
)
columns = st.builds(m.Column, names, uint32, st.integers(-(2**31), 2**31 - 1), st.booleans())


def changes(xid: st.SearchStrategy[Any]) -> st.SearchStrategy[m.AnyMessage]:
    """Messages that may be inside a stream block, and outside of one."""
    whole_or_key = st.tuples(st.one_of(st.none(), rows), st.booleans())
    return st.one_of(
        st.builds(m.Relation, uint32, schemas, names, st.sampled_from("dnfi"), st.lists(columns).map(tuple), xid),
        st.builds(m.Type, uint32, schemas, names, xid),
        st.builds(m.Insert, uint32, rows, xid),
        st.tuples(uint32, rows, whole_or_key, xid).map(
            lambda of: m.Update(of[0], of[1], of[2][0], of[2][1] and of[2][0] is not None, of[3])
        ),
        st.builds(m.Delete, uint32, rows, st.booleans(), xid),
        st.builds(m.Truncate, st.lists(uint32).map(tuple), st.booleans(), st.booleans(), xid),
        st.builds(m.LogicalMessage, st.booleans(), uint64, names, st.binary(max_size=300), xid),
        st.builds(m.Origin, uint64, names),
    )


outside = st.one_of(
    changes(st.none()),
    st.builds(m.Begin, uint64, times, uint32),
    st.builds(m.Commit, uint64, uint64, times),
    st.builds(m.StreamCommit, uint32, uint64, uint64, times),
    st.builds(m.StreamAbort, uint32, uint32),
    st.builds(m.StreamAbort, uint32, uint32, uint64, times),
    st.builds(m.BeginPrepare, uint64, uint64, times, uint32, names),
    st.builds(m.Prepare, uint64, uint64, times, uint32, names, st.booleans()),
    st.builds(m.CommitPrepared, uint64, uint64, times, uint32, names),
    st.builds(m.RollbackPrepared, uint64, uint64, times, times, uint32, names),
).map(lambda message: [message])
pieces = st.tuples(
    st.builds(m.StreamStart, uint32, st.booleans()), st.lists(changes(uint32), max_size=4), st.just(m.StreamStop())
).map(lambda piece: [piece[0], *piece[1], piece[2]])
conversations = st.lists(st.one_of(outside, pieces), max_size=6).map(lambda runs: [one for run in runs for one in run])


def decoded(data: bytes, decoder: Decoder) -> m.AnyMessage:
    message = decoder.decode(data)
    return message.rows() if isinstance(message, m.ShortChange) else message


@settings(max_examples=100)
@given(conversations)
def test_every_message_comes_out_as_it_was_written(conversation: list[m.AnyMessage]) -> None:
    decoder, short = Decoder(), Decoder(short_changes=True)
    payloads = [wire.encode(message) for message in conversation]
    assert [decoder.decode(payload) for payload in payloads] == conversation
    assert [decoded(payload, short) for payload in payloads] == conversation


@pytest.mark.parametrize("old", [None, [b"1", None]])
@pytest.mark.parametrize("key_only", [True, False])
def test_an_old_row_is_whole_or_only_its_key_or_missing(old: m.Row | None, key_only: bool) -> None:
    update = m.Update(1, [b"2", m.UNCHANGED], old, key_only and old is not None)
    assert Decoder().decode(wire.encode(update)) == update
    assert decoded(wire.encode(update), Decoder(short_changes=True)) == update
    delete = m.Delete(1, [b"2", None], key_only)
    assert Decoder().decode(wire.encode(delete)) == delete


ABSENT_AND_PRESENT = [b"", b"n", b"u", b"tn", b"N", None, m.UNCHANGED]


@given(st.lists(st.lists(st.sampled_from(ABSENT_AND_PRESENT), min_size=4, max_size=4), min_size=2))
def test_values_that_end_like_a_null_are_not_taken_for_one_whatever_came_before(rows: list[m.Row]) -> None:
    decoder = Decoder(short_changes=True)
    inserts = [m.Insert(1, row) for row in rows]
    updates = [m.Update(2, new, old, False) for new, old in itertools.pairwise(rows)]
    for change in [*inserts, *updates, *inserts, *updates]:
        assert decoded(wire.encode(change), decoder) == change


@given(st.lists(st.sampled_from([b"", b"1", b"tn", None]), min_size=1, max_size=4), st.data())
def test_a_change_that_is_cut_off_or_has_more_behind_it_is_refused_after_equal_ones(
    row: m.Row, data: st.DataObject
) -> None:
    encoded, decoder = wire.encode(m.Insert(1, row)), Decoder(short_changes=True)
    assert decoded(encoded, decoder) == m.Insert(1, row)
    assert decoded_or_refused(encoded[: data.draw(st.integers(0, len(encoded) - 1))], decoder) is None
    assert decoded_or_refused(encoded + data.draw(st.sampled_from([b"n", b"u", b"1", b"t\0\0\0\0"])), decoder) is None


def test_the_pattern_of_a_layout_that_has_become_rare_is_replaced() -> None:
    decoder, rare, frequent = ShortChangeDecoder(), m.Insert(1, [b"1", b"2"]), m.Insert(1, [b"1", None])
    decoder.decode(wire.encode(rare))
    payload = wire.encode(frequent)
    for _ in range(MAX_MISSES):
        decoder.decode(payload)
    (pattern,) = decoder._patterns.values()
    change = pattern.decode(payload)
    assert change is not None
    assert change.rows() == frequent


def decoded_or_refused(data: bytes, decoder: Decoder) -> m.AnyMessage | None:
    try:
        return decoded(data, decoder)
    except DecodeError:
        return None


def decoder_in(piece: bool) -> Decoder:
    decoder = Decoder(short_changes=True)
    if piece:
        decoder.decode(wire.encode(m.StreamStart(7, True)))
    return decoder


@given(
    st.one_of(outside.map(lambda run: (False, run[0])), changes(uint32).map(lambda change: (True, change))), st.data()
)
def test_a_message_that_is_cut_off_or_has_more_behind_it_is_refused(
    of: tuple[bool, m.AnyMessage], data: st.DataObject
) -> None:
    piece, message = of
    encoded = wire.encode(message)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    # Only one message is a prefix of another one: an abort without its position and time.
    short = isinstance(message, m.StreamAbort) and len(cut) == 9
    assert (decoded_or_refused(cut, decoder_in(piece)) is None) != short
    longer = encoded + data.draw(st.binary(min_size=1, max_size=3))
    assert decoded_or_refused(longer, decoder_in(piece)) is None


@given(st.one_of(outside.map(lambda run: run[0]), changes(uint32)), st.data(), st.booleans())
def test_garbled_bytes_are_read_or_refused_and_nothing_else_happens(
    message: m.AnyMessage, data: st.DataObject, piece: bool
) -> None:
    garbled = bytearray(wire.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        garbled[data.draw(st.integers(0, len(garbled) - 1))] = data.draw(uint8)
    read = decoded_or_refused(bytes(garbled), decoder_in(piece))
    if read is not None:
        msgspec.structs.asdict(read)


@given(st.binary(max_size=80), st.booleans())
@example(b"", False)
@example(b"", True)
@example(b"T\xff\xff\xff\xff\0", False)
@example(b"I\0\0\0\1N\xff\xff", False)
def test_bytes_of_any_kind_are_read_or_refused(data: bytes, piece: bool) -> None:
    decoded_or_refused(data, decoder_in(piece))


def test_a_value_in_binary_is_refused_since_we_never_ask_for_it() -> None:
    insert = b"I" + wire.int32(1) + b"N" + wire.int16(1) + b"b" + wire.int32(2) + b"ab"
    with pytest.raises(DecodeError, match="sent a binary value"):
        Decoder().decode(insert)


def test_a_kind_that_pgoutput_does_not_have_is_named() -> None:
    with pytest.raises(DecodeError, match="kind 'X' outside of a stream block"):
        Decoder().decode(b"X123")


@pytest.mark.parametrize("message", [m.Begin(1, 2, 3), m.StreamStart(3, False), m.StreamCommit(1, 2, 3, 4)])
def test_a_transaction_does_not_begin_or_end_inside_a_streamed_piece(message: m.AnyMessage) -> None:
    decoder = decoder_in(piece=True)
    with pytest.raises(DecodeError, match="inside a stream block"):
        decoder.decode(wire.encode(message))


def test_a_piece_does_not_stop_where_none_is_open() -> None:
    with pytest.raises(DecodeError, match="kind 'E' outside of a stream block"):
        Decoder().decode(b"E")


@pytest.mark.parametrize("broken", [b"S\0\0\0\7", b"S\0\0\0\7\1\1"])
def test_a_start_that_is_refused_opens_no_piece(broken: bytes) -> None:
    decoder = Decoder()
    with pytest.raises(DecodeError):
        decoder.decode(broken)
    assert decoder.decode(wire.encode(m.Begin(1, 2, 3))) == m.Begin(1, 2, 3)


@pytest.mark.parametrize("length", [0, 255, 256, 65_535, 65_536 + 7, 2**24 + 7])
def test_a_value_of_any_length_comes_through(length: int) -> None:
    insert = m.Insert(1, [b"1", b"x" * length, None])
    assert Decoder().decode(wire.encode(insert)) == insert


def test_a_type_of_the_catalog_is_called_by_its_schema() -> None:
    read = Decoder().decode(b"Y" + wire.int32(25) + b"\0text\0")
    assert read == m.Type(25, "pg_catalog", "text")


def test_a_name_that_is_no_utf8_is_still_a_name() -> None:
    read = Decoder().decode(b"O" + wire.int64(9) + b"caf\xe9\0")
    assert read == m.Origin(9, "caf\ufffd")
