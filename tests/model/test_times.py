"""Times of the server, read from what Postgres sends."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.clock import Times, from_microseconds
from headrace.store import Database
from tests.support.readers import to_microseconds

times = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001


@given(times)
def test_a_time_is_the_same_after_it_was_stored(time: datetime) -> None:
    assert from_microseconds(to_microseconds(time)) == time


@pytest.mark.asyncio
async def test_times_are_read_as_the_driver_reads_them(database: Database) -> None:
    for made in (
        "array[timestamptz '2026-11-24 03:00:00.000001+00', '1999-12-31 23:59:59.999999+00', null, '2000-01-01+00', '0001-01-01+00']",
        "array[timestamptz '2026-11-24 03:00:00.123456+00']",
        "array(select timestamptz '2026-01-01+00' + i * interval '17 ms' from generate_series(1, 1000) as i)",
        "array[null, null]::timestamptz[]",
        "'{}'::timestamptz[]",
    ):
        row = await database.fetchrow(f"select {made} as driver, array_send({made}) as sent")
        read = Times.read(row["sent"])
        assert list(read) == row["driver"]
        assert len(read) == len(row["driver"])
        assert [read[place] for place in range(len(read))] == row["driver"]
        assert list(read[1:3]) == row["driver"][1:3]
