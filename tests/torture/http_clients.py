"""HTTP clients of two servers that behave badly: they leave at any moment, ack late, ack twice, and invent ack ids."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.torture.http_ledger import Delivery, HttpLedger, Place
from tests.torture.http_peer import Gone, Peer
from tests.torture.http_servers import ServerProcess

RETRY = 0.05
"""Seconds after which a client of a dead server switches to another server."""

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


class Clients:
    """A group of HTTP clients.

    Args:
        servers: The servers to call, chosen at random.
        ledger: Judges what the clients receive.
        stream, consumer: The consumer to receive from.
        chance: Decides what each client does.

    Attributes:
        finished: Once it is set, each client ends as soon as it holds no messages.
        did: How often each action was done.
    """

    def __init__(
        self, servers: Sequence[ServerProcess], ledger: HttpLedger, stream: str, consumer: str, chance: random.Random
    ) -> None:
        self._servers = servers
        self._ledger = ledger
        self._messages = f"/v1/streams/{stream}/messages"
        self._consumer = f"/v1/streams/{stream}/consumers/{consumer}"
        self._chance = chance
        self._hoard: list[Delivery] = []  # given up, to be acked when it is too late
        self.finished = asyncio.Event()
        self.did: Counter[str] = Counter()

    def _peer(self) -> Peer:
        return Peer(self._chance.choice(self._servers).port)

    # --- publishing

    async def publish(self, keys: list[str], each: int, pause: float) -> None:
        """Publish so many messages of each key in batches. Each batch is sent again until a server
        confirms that it is stored.
        """
        places = [(key, number) for number in range(each) for key in keys]
        done = 0
        while done < len(places):
            size = self._chance.randint(1, 20)
            await self._publish_batch(places[done : done + size])
            done += size
            await asyncio.sleep(pause * size * self._chance.uniform(0.5, 1.5))

    async def _publish_batch(self, places: list[Place]) -> None:
        messages = [
            {"key": key, "data": {"number": number, "note": "x" * self._chance.choice([10, 200, 3000])},
             "message_id": f"{key}-{number}"}
            for key, number in places
        ]  # fmt: skip
        for place in places:
            self._ledger.published[place] = False
        while True:
            async with self._peer() as peer:
                try:
                    status, body = await peer.ask("POST", self._messages, {"messages": messages})
                except Gone:
                    self.did["publishes without an answer"] += 1
                else:
                    if status == 200:
                        break
                    assert status == 503, (status, body)
            await asyncio.sleep(RETRY)
        for place in places:
            self._ledger.published[place] = True

    # --- receiving

    async def receive(self) -> None:
        """Receive and ack until finished, on one connection after the other."""
        while not self.finished.is_set():
            try:
                async with self._peer() as peer:
                    while not self.finished.is_set():
                        await self._once(peer)
            except Gone:
                self.did["servers gone"] += 1
                await asyncio.sleep(RETRY)

    async def _once(self, peer: Peer) -> None:
        asked_at = time.monotonic()
        wait_for = self._chance.choice([0, 200, 1000])
        body = {"batch_size": self._chance.randint(1, 10), "wait_for": wait_for}
        await peer.send("POST", f"{self._consumer}/receive", body)
        whim = self._chance.random()
        if whim < 0.03:
            self.did["left while waiting"] += 1
            await asyncio.sleep(self._chance.choice([0, 0.001, 0.01, 0.1]))
            peer.leave()
            return
        if whim < 0.05:
            self.did["left in the middle of an answer"] += 1
            await peer.head()
            peer.leave()
            return
        status, answer = await peer.answer()
        if status != 200:
            assert status in (429, 503), (status, answer)
            await asyncio.sleep(RETRY)
            return
        received = [self._take_down(one, asked_at) for one in answer["data"]]
        if received:
            await self._do_with(peer, received, whim)

    def _take_down(self, one: Any, asked_at: float) -> Delivery:
        message = one["message"]
        place = (message["key"], message["data"]["number"])
        return self._ledger.came(place, message["seq"], one["ack_id"], message["attempt"], asked_at)

    async def _do_with(self, peer: Peer, received: list[Delivery], whim: float) -> None:
        if whim < 0.07:
            self.did["left before the ack"] += 1
            self._hoard += received
            peer.leave()
            return
        if whim < 0.10:
            self.did["made up ack ids"] += 1
            await self._refused(peer, self._made_up(self._chance.choice(received).ack_id))
        if whim < 0.14 and self._hoard:
            await self._ack_too_late(peer)
        if whim < 0.20:
            self.did["nacked some"] += 1
            cut = self._chance.randint(1, len(received))
            given_back, received = received[:cut], received[cut:]
            for one in given_back:
                one.over = True
            ids = [one.ack_id for one in given_back]
            status, _ = await peer.ask("POST", f"{self._consumer}/nack", {"ack_ids": ids})
            assert status == 200
        if received:
            await self._ack(peer, received, leave=0.20 <= whim < 0.22)

    async def _ack(self, peer: Peer, received: list[Delivery], *, leave: bool = False) -> None:
        """Ack the delivery. With `leave`, disconnect before the answer arrives."""
        ledger = self._ledger
        ledger.acking(received)
        stale: set[str] | None = None
        try:
            ids = [one.ack_id for one in received]
            await peer.send("POST", f"{self._consumer}/ack", {"ack_ids": ids, "strict": True})
            if leave:
                self.did["left before the answer to an ack"] += 1
                peer.leave()
                return
            status, answer = await peer.answer()
            if status == 503:
                return
            assert status == 200 or (status, answer["code"]) == (409, "lease_lost"), (status, answer)
            stale = set(answer["stale"]) if status == 409 else set()
            assert stale <= set(ids)
            self.did["stale ids"] += len(stale)
        finally:
            ledger.answered(received, stale)

    async def _ack_too_late(self, peer: Peer) -> None:
        """Ack a delivery that was given up long ago. The ack changes nothing, and the server reports it as stale."""
        limit = time.monotonic() - self._ledger.ack_wait - self._ledger.slack
        old = [one for one in self._hoard if one.came_at < limit]
        self._hoard = [one for one in self._hoard if one.came_at >= limit]
        if old:
            self.did["acks far too late"] += len(old)
            ids = [one.ack_id for one in old]
            status, answer = await peer.ask("POST", f"{self._consumer}/ack", {"ack_ids": ids, "strict": True})
            assert (status, set(answer["stale"])) == (409, set(ids))

    def _made_up(self, ack_id: str) -> str:
        place = self._chance.randrange(len(ack_id))
        other = self._chance.choice([one for one in ALPHABET if one != ack_id[place]])
        return self._chance.choice(
            [ack_id[:place] + other + ack_id[place + 1 :], ack_id[:-1], ack_id + "A", ack_id[::-1]]
        )

    async def _refused(self, peer: Peer, ack_id: str) -> None:
        verb = self._chance.choice(["ack", "nack", "extend"])
        status, answer = await peer.ask("POST", f"{self._consumer}/{verb}", {"ack_ids": [ack_id]})
        assert status in (400, 422), (status, answer)
