"""Mutated byte streams on a connection: no answer to a request that was not sent."""

from __future__ import annotations

import asyncio

from tests.support.connection_fuzz import Seen, Stream, expected, fuzz, streams

SEED = 20_300_131
COUNT = 3000


def test_no_mutation_smuggles_a_request() -> None:
    answered = asyncio.run(fuzz(SEED, COUNT))
    assert answered > COUNT / 4  # not all are refused


def test_the_streams_are_the_same_each_time() -> None:
    assert list(streams(SEED, 50)) == list(streams(SEED, 50))
    assert any(stream.sound is not None for stream in streams(SEED, 50))


def test_the_second_reading_finds_what_was_written() -> None:
    for stream in streams(SEED, 300):
        if stream.sound is not None:
            assert expected(stream.data) == stream.sound
    hidden = b"POST /a HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nGET / HTT"
    assert expected(Stream(hidden, [], None).data) == [Seen("POST", "/a", b"GET / HTT")]
