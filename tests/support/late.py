"""Publishers that commit late, out of order, partly or not at all, and record what they committed."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import asyncpg

from headrace import store

ROLLED_BACK = 0.2


class LatePublishers:
    """Several concurrent publishers to the stream `orders`. They run until the given number of messages has been
    committed.

    Attributes:
        keep_on: While this is true they continue beyond that number.
        committed: The seqs of the committed messages, in the order in which the commits returned.
        publishing: Whether they still publish.
    """

    def __init__(self, dsn: str, *, messages: int, seed: int, publishers: int = 4, slowest: float = 0.02) -> None:
        self._dsn = dsn
        self._messages = messages
        self._seed = seed
        self._publishers = publishers
        self._slowest = slowest
        self.committed: set[int] = set()
        self.publishing = True
        self.keep_on = False

    async def run(self) -> None:
        try:
            await asyncio.gather(*(self._publish(number) for number in range(self._publishers)))
        finally:
            self.publishing = False

    async def _publish(self, number: int) -> None:
        chance = random.Random(f"{self._seed} {number}")
        own = await asyncpg.connect(self._dsn)
        try:
            while len(self.committed) < self._messages or self.keep_on:
                await self._one_transaction(own, chance)
        finally:
            await own.close()

    async def _one_transaction(self, own: Any, chance: random.Random) -> None:
        transaction = own.transaction()
        await transaction.start()
        seqs = [await self._one(own, chance) for _ in range(chance.randint(1, 8))]
        if chance.random() < 0.3:
            seqs += await self._in_a_savepoint(own, chance)
        await self._dawdle(chance)
        if chance.random() < ROLLED_BACK:
            await transaction.rollback()
        else:
            await transaction.commit()
            self.committed.update(seqs)

    async def _one(self, own: Any, chance: random.Random) -> int:
        if chance.random() < 0.1:
            await self._dawdle(chance)
        seq = await store.publish(own, "orders", f"k.{chance.randrange(20)}", "1")
        assert seq is not None
        return seq

    async def _in_a_savepoint(self, own: Any, chance: random.Random) -> list[int]:
        savepoint = own.transaction()
        await savepoint.start()
        seqs = [await self._one(own, chance) for _ in range(chance.randint(1, 4))]
        if chance.random() < 0.5:
            await savepoint.rollback()
            return []
        await savepoint.commit()
        return seqs

    async def _dawdle(self, chance: random.Random) -> None:
        """Be late. The delay is the purpose of such a publisher, not a wait for something."""
        await asyncio.sleep(chance.random() ** 4 * self._slowest)
