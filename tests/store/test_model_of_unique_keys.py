"""Unique keys and two consumers, with operations in any order, against a plain Python model."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from headrace import store, sweep
from headrace.model.messages.publish_options import PublishOptions
from headrace.model.records import Batch
from tests.conftest import Declare
from tests.support.readers import Reader

pytestmark = pytest.mark.asyncio

STEPS = 60
KEYS = ["us.1", "us.2", "eu.1"]


class Model:
    """The pending messages: for each consumer, the messages that it wants and is not done with, and those in flight.

    `last` is the last message of each unique key.
    """

    def __init__(self, readers: dict[str, Reader]) -> None:
        self.readers = readers
        self.keys: dict[int, str] = {}
        self.last: dict[str, int] = {}
        self.left: dict[str, set[int]] = {name: set() for name in readers}
        self.flying: dict[str, list[Batch]] = {name: [] for name in readers}

    def published(self, seq: int, key: str) -> None:
        self.keys[seq] = key
        self.left["all"].add(seq)
        if key.startswith("us."):
            self.left["us"].add(seq)

    def is_pending(self, unique_key: str, unique_while: str) -> bool:
        seq = self.last.get(unique_key)
        if seq is None:
            return False
        return any(
            seq in left and (unique_while == "pending" or not any(seq in batch.seqs for batch in self.flying[name]))
            for name, left in self.left.items()
        )


@pytest.mark.parametrize("seed", range(4))
async def test_a_message_is_published_unless_the_model_has_a_pending_one(
    database: store.Database, declare: Declare, seed: int
) -> None:
    chance = random.Random(seed)
    readers = {
        "all": await declare("all", max_deliver=2),
        "us": await declare("us", filters=("us.>",), ordered=False, max_deliver=2),
    }
    model = Model(readers)
    for _ in range(STEPS):
        name = chance.choice(list(readers))
        what = chance.choice(["publish"] * 5 + ["lease"] * 3 + ["ack", "ack", "nack", "reject", "seek", "sweep"])
        if what == "publish":
            await _publish(database, model, chance)
        elif what == "lease":
            batch = await readers[name].lease(chance.choice(["ann", "bob"]), chance.randint(1, 4))
            if batch.lease_id is not None:
                model.flying[name].append(batch)
        elif what == "seek":
            await readers[name].seek(0)
            model.flying[name].clear()
            model.left[name] = {seq for seq, key in model.keys.items() if name == "all" or key.startswith("us.")}
        elif what == "sweep":
            await sweep(database)
            model.last = {key: seq for key, seq in model.last.items() if model.is_pending(key, "pending")}
        elif model.flying[name]:
            await _settle(model, name, what, chance)


async def _publish(database: store.Database, model: Model, chance: random.Random) -> None:
    unique_key, key = chance.choice("xyz"), chance.choice(KEYS)
    unique_while = chance.choice(["pending", "waiting"])
    before = model.last.get(unique_key)
    pending = model.is_pending(unique_key, unique_while)
    seq = await store.publish(
        database, "orders", key, "1", options=PublishOptions(unique_key=unique_key, unique_while=unique_while, deliver_at=datetime.now(UTC) if chance.random() < 0.2 else None),
    )  # fmt: skip
    assert (seq == before) == pending, (unique_key, unique_while, before, seq)
    if not pending:
        assert seq is not None
        model.last[unique_key] = seq
        model.published(seq, key)


async def _settle(model: Model, name: str, what: str, chance: random.Random) -> None:
    """Settle a lease. A message that failed in its second attempt is a dead letter."""
    reader = model.readers[name]
    batch = model.flying[name].pop(chance.randrange(len(model.flying[name])))
    if what == "ack":
        assert await reader.ack_all(batch) == []
    elif what == "reject":
        assert await reader.reject(batch) == []
    else:
        assert await reader.nack(batch) == []
    attempts = batch.attempts or [1] * len(batch.seqs)
    model.left[name] -= {
        seq for seq, attempt in zip(batch.seqs, attempts, strict=True) if what != "nack" or attempt >= 2
    }
