"""Dead letters by the type and the text of their error, and by the time of their death."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from headrace import store
from headrace.admin import Admin
from headrace.model.conditions.selections import DeadLetterCriteria
from headrace.model.outcomes import Failure, Settlement
from headrace.model.records import GroupedBy
from headrace.model.specs import ConsumerSpec
from tests.conftest import Declare
from tests.support.readers import Reader, publish

pytestmark = pytest.mark.asyncio

Chosen = DeadLetterCriteria
BEGAN = datetime(2030, 5, 1, 10, 30, tzinfo=UTC)


async def died(reader: Reader, *failures: Failure) -> None:
    """Let the first message die of the first failure at `BEGAN`, and each of the next an hour later."""
    await publish(reader.executor, *(f"k{number}" for number in range(len(failures))))
    batch = await reader.lease()
    assert batch.lease_id is not None
    for number, (seq, failure) in enumerate(zip(batch.seqs, failures, strict=True)):
        settlement = Settlement(leases=[batch.lease_id], seqs=[seq], failures=[failure])
        assert await store.settle(reader.executor, reader.id, settlement, now=BEGAN + timedelta(hours=number)) == []


def failed(error: str | None, error_type: str | None = None, kind: str = "retry") -> Failure:
    return Failure(kind, None, error, None, error_type)  # type: ignore[arg-type]


FAILURES = (
    failed("ValueError: 1", "ValueError"),
    failed('NoStock: it\'s gone \\ for "good"', "shop.NoStock"),
    failed("ValueError: 2", "ValueError"),
    failed("no", "headrace.Reject", "reject"),
    failed(None),
)


async def test_the_type_of_the_error_is_stored_with_the_dead_letter(declare: Declare) -> None:
    reader = await declare(max_deliver=1)
    await died(reader, *FAILURES)
    assert [letter.error_type for letter in await reader.dead_letters()] == [failure.error_type for failure in FAILURES]


async def test_one_whose_process_died_says_so_by_its_type(database: store.Database, declare: Declare) -> None:
    reader = await declare(max_deliver=1)
    await publish(database, "a")
    await reader.lease()
    reader.clock.advance(3600)
    await reader.lease()
    assert [letter.error_type for letter in await reader.dead_letters()] == ["LeaseExpired"]


async def test_an_error_that_a_client_gave_selects_its_dead_letters(database: store.Database) -> None:
    admin = Admin(database)
    await admin.create_stream("orders")
    await admin.create_consumer(ConsumerSpec(stream="orders", name="ship", max_deliver=1))
    for error in ("x" * 5000, ""):
        await admin.send("orders", "a", "1")
        (received,) = await admin.receive("orders", "ship")
        await admin.nack("orders", "ship", [received.ack_id], error=error)
    groups = await admin.dead_letter_groups("orders", "ship", "error")
    assert sorted(len(group.value or "") for group in groups) == [0, 2000]
    for group in groups:
        assert await admin.redrive("orders", "ship", error=group.value or "") == 1


@pytest.mark.parametrize("verb", ["list", "redrive", "discard"])
@pytest.mark.parametrize(
    ("chosen", "seqs"),
    [
        (Chosen(error_type="ValueError"), [1, 3]),
        (Chosen(error_type="valueerror"), []),
        (Chosen(error_type=""), [5]),
        (Chosen(error='NoStock: it\'s gone \\ for "good"'), [2]),
        (Chosen(error="ValueError"), []),
        (Chosen(error=""), [5]),
        (Chosen(reason="rejected"), [4]),
        (Chosen(since=BEGAN + timedelta(hours=1)), [2, 3, 4, 5]),
        (Chosen(until=BEGAN + timedelta(hours=1)), [1]),
        (Chosen(since=BEGAN, until=BEGAN + timedelta(hours=3), error_type="ValueError"), [1, 3]),
        (Chosen(error_type="ValueError", seqs=[2, 3]), [3]),
        (Chosen(error_type="' or true --"), []),
    ],
)
async def test_dead_letters_are_chosen_by_error_and_time(
    declare: Declare, verb: str, chosen: DeadLetterCriteria, seqs: Sequence[int]
) -> None:
    reader = await declare(max_deliver=1)
    await died(reader, *FAILURES)
    if verb == "list":
        found = await store.dead_letters(reader.executor, reader.id, chosen)
        assert [letter.seq for letter in found] == seqs
    else:
        assert await getattr(store, verb)(reader.executor, reader.id, selection=chosen) == len(seqs)
        left = [letter.seq for letter in await reader.dead_letters()]
        assert left == [seq for seq in range(1, 6) if seq not in seqs]


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("type", [("ValueError", 2), ("headrace.Reject", 1), ("shop.NoStock", 1), (None, 1)]),
        ("reason", [("exhausted", 4), ("rejected", 1)]),
        ("day", [("2030-05-01", 5)]),
        ("hour", [(f"2030-05-01T{hour}:00Z", 1) for hour in range(10, 15)]),
        ("key", [(f"k{number}", 1) for number in range(5)]),
    ],
)
async def test_groups_count_equal_values_and_come_largest_first(
    declare: Declare, by: GroupedBy, groups: list[tuple[str | None, int]]
) -> None:
    reader = await declare(max_deliver=1)
    await died(reader, *FAILURES)
    found = await store.dead_letter_groups(reader.executor, reader.id, by)
    assert [(group.value, group.messages) for group in found] == groups
    assert await store.dead_letter_groups(reader.executor, reader.id, by, limit=1) == found[:1]


async def test_a_group_says_when_the_first_and_the_last_died_and_which_they_are(declare: Declare) -> None:
    reader = await declare(max_deliver=1)
    await died(reader, *FAILURES)
    (group,) = await store.dead_letter_groups(reader.executor, reader.id, "type", Chosen(error_type="ValueError"))
    assert (group.first_died_at, group.last_died_at) == (BEGAN, BEGAN + timedelta(hours=2))
    assert (group.lowest, group.highest) == (1, 3)
