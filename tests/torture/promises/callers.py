"""HTTP clients that receive and ack. Now and then they nack, leave without an answer, or ack too late.

They judge nothing. They record which messages came and which acks were confirmed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import time
from typing import Any

from tests.torture.http_peer import Gone, Peer
from tests.torture.promises.history import STREAM
from tests.torture.promises.observed import Notes

PATIENCE = 20.0
"""Timeout of an answer in seconds. After it the client switches to another server."""

SLOW = 3.0
"""Seconds after which a slow answer is logged."""

_CONSUMER = f"/v1/streams/{STREAM}/consumers/http"

Record = dict[str, Any]

logger = logging.getLogger(__name__)


class Callers:
    """Several clients of the same servers.

    Attributes:
        enough: Not used. The clients end by `end`.
    """

    def __init__(self, notes: Notes, options: argparse.Namespace) -> None:
        self._notes = notes
        self._ports = [int(port) for port in options.ports.split(",")]
        self._count = options.clients
        self._seed = options.seed
        self._over = asyncio.Event()
        self.enough = asyncio.Event()

    async def end(self) -> None:
        self._over.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._client(random.Random(self._seed + number)))

    async def _client(self, chance: random.Random) -> None:
        while not self._over.is_set():
            try:
                async with Peer(chance.choice(self._ports)) as peer:
                    while not self._over.is_set():
                        async with asyncio.timeout(PATIENCE):
                            await self._once(peer, chance)
            except (Gone, TimeoutError):
                await asyncio.sleep(0.1)

    async def _once(self, peer: Peer, chance: random.Random) -> None:
        asked = time.time()
        status, answer = await self._ask(peer, "receive", {"batch_size": 50, "wait_for": 1000})
        if status != 200:
            assert status in (429, 503), (status, answer)
            await asyncio.sleep(0.1)
            return
        records: list[Record] = answer["data"]
        self._notes.note(
            "received", [(*self._named(one), one["message"]["key"], asked, time.time()) for one in records]
        )
        if not records:
            return
        whim = chance.random()
        if whim < 0.02:
            raise Gone  # and acks nothing
        if whim < 0.05:
            some, records = records[:3], records[3:]
            await self._say(peer, "nack", some)
        if whim > 0.99:
            await asyncio.sleep(3.0)  # longer than ack_wait, so the ack is stale
        if records:
            await self._ack(peer, records)

    @staticmethod
    def _named(one: Record) -> tuple[int, int, str]:
        message = one["message"]
        return message["seq"], message["attempt"], message["data"]["uid"]

    async def _ack(self, peer: Peer, records: list[Record]) -> None:
        asked = time.time()
        stale = await self._say(peer, "ack", records)
        if stale is not None:
            answered = time.time()
            self._notes.note(
                "acked", [(*self._named(one), asked, answered) for one in records if one["ack_id"] not in stale]
            )

    async def _say(self, peer: Peer, verb: str, records: list[Record]) -> set[str] | None:
        """Return the ids that were refused, or None if the outcome is not known."""
        ids = [one["ack_id"] for one in records]
        status, answer = await self._ask(peer, verb, {"ack_ids": ids, "strict": True})
        if status == 503:
            return None
        assert status == 200 or (status, answer["code"]) == (409, "lease_lost"), (status, answer)
        return set(answer["stale"]) if status == 409 else set()

    @staticmethod
    async def _ask(peer: Peer, verb: str, body: dict[str, Any]) -> tuple[int, Any]:
        asked, came = time.time(), "nothing"
        try:
            status, answer = await peer.ask("POST", f"{_CONSUMER}/{verb}", body)
            came = str(status)
            return status, answer
        finally:
            if time.time() - asked > SLOW:
                logger.warning("%s of %s, asked at %.1f: %s after %.1f s", verb, peer, asked, came, time.time() - asked)
