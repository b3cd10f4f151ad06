"""Minimal HTTP clients: publishers and receivers on bare sockets, which parse only what they need.

They share the machine with the server that they measure. Messages are therefore assembled from prepared pieces, and
only the ack ids and the messages' numbers are extracted from an answer. The tests check that the JSON around them is
correct.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from benchmarks import payloads
from benchmarks.checks import CheckFailed
from benchmarks.payloads import Keys

POOL = 500
"""Number of different payloads. Only the number and the key of a message are not taken from these."""

_HEAD_END, _LENGTH, _OK = b"\r\n\r\n", b"content-length: ", b"HTTP/1.1 200 "
_NONE_STALE = b'{"stale":[],'
_ACK_ID, _NUMBER = b'"ack_id":"', b'"number":'


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """A request as bytes on the wire."""
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


class Connection(asyncio.Protocol):
    """A keep-alive connection with one request in flight at a time. Calls `answered` with the body of each answer."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self.fail = fail
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = 0
        self._body_at = 0
        self.closing = False

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport
        self.write = transport.write

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closing:
            self.fail(CheckFailed(f"The server closed a connection: {error!r}."))

    def close(self) -> None:
        self.closing = True
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._have:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._pieces)
            if not self._need and not self._complete(data):
                self._pieces = [data]
                return
        elif not self._complete(data):
            self._pieces = [data]
            self._have = len(data)
            return
        body = data[self._body_at :]
        self._pieces = []
        self._have = self._need = 0
        if not data.startswith(_OK):
            self.fail(CheckFailed(f"The server answered {data[:300]!r}."))
            return
        self.answered(body)

    def _complete(self, data: bytes) -> bool:
        """Whether the answer that begins with `data` is complete."""
        end = data.find(_HEAD_END)
        if end < 0:
            return False
        at = data.find(_LENGTH, 0, end) + len(_LENGTH)
        self._body_at = end + 4
        self._need = self._body_at + int(data[at : data.index(b"\r", at)])
        return len(data) >= self._need

    def go_on(self) -> None:
        """Send the next request."""
        raise NotImplementedError

    def answered(self, body: bytes) -> None:
        """Handle an answer."""
        raise NotImplementedError


class Board:
    """The progress of a run, for all of its clients: what each consumer received, and which clients are done.

    A run is done once all is received and the acks that are requests of their own are answered. The other acks came with
    requests to receive, which wait for more messages after they have settled these.

    Args:
        count: the total number of messages.
        consumers: their names.
        lead: how far publishers may be ahead of the slowest consumer.
    """

    def __init__(self, count: int, consumers: list[str], lead: int) -> None:
        self.count = count
        self.published = 0
        self.got = dict.fromkeys(consumers, 0)
        self.acking = 0
        self.traces: dict[str, list[int]] = {name: [] for name in consumers}
        self.answers: dict[str, int] = dict.fromkeys(["publish", "receive", "ack", "empty"], 0)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lead = lead
        self._held_back: deque[Publisher] = deque()

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)

    def may_publish(self, publisher: Publisher) -> bool:
        """Whether the publisher may continue. Otherwise it is resumed later."""
        if self.published - min(self.got.values()) < self._lead:
            return True
        self._held_back.append(publisher)
        return False

    def received(self, consumer: str, numbers: list[int]) -> None:
        """Record that a consumer received these messages."""
        self.traces[consumer] += numbers
        self.got[consumer] += len(numbers)
        self.acking += 1
        while self._held_back and self.published - min(self.got.values()) < self._lead:
            self._held_back.popleft().go_on()

    def acked(self) -> None:
        """Record that messages that were received are acked, or will be with the next request."""
        self.acking -= 1
        if not self.acking and min(self.got.values()) >= self.count and not self.done.done():
            self.done.set_result(None)


class Receiver(Connection):
    """Receives in a loop. Each request acks the messages of the one before. The last ones are acked by an ack.

    Args:
        skip: bytes in a message that need not be searched: its note.
    """

    def __init__(self, board: Board, stream: str, consumer: str, batch: int, wait_for: str, skip: int) -> None:
        super().__init__(board.fail)
        path = f"/v1/streams/{stream}/consumers/{consumer}"
        self._board = board
        self._consumer = consumer
        self._ask = request("GET", f"{path}/receive?batch_size={batch}&wait_for={wait_for}")
        self._ask_next = request("POST", f"{path}/receive?batch_size={batch}&wait_for={wait_for}", b"?")
        self._ask_next = self._ask_next.partition(b"content-length")[0]
        self._ack = request("POST", f"{path}/ack", b"?").partition(b"content-length")[0]
        self._skip = skip
        self._settles = self._acks = False

    def go_on(self) -> None:
        """Start."""
        self.write(self._ask)

    def answered(self, body: bytes) -> None:
        board = self._board
        if self._acks:
            board.answers["ack"] += 1
            board.acked()
            return
        if self._settles and not body.startswith(_NONE_STALE):
            self.fail(CheckFailed(f"Acks were lost: {body[:300]!r}."))
            return
        ids, numbers = self._found(body)
        self._settles = bool(ids)
        if not ids:
            board.answers["empty"] += 1
            self.write(self._ask)
            return
        board.answers["receive"] += 1
        named = b'{"ack_ids":["' + b'","'.join(ids) + b'"]}'
        board.received(self._consumer, numbers)  # before its ack is sent, after which others of its keys may come
        self._acks = board.got[self._consumer] >= board.count
        head = self._ack if self._acks else self._ask_next
        self.write(head + b"content-length: %d\r\n\r\n" % len(named) + named)
        if not self._acks:
            board.acked()

    def _found(self, body: bytes) -> tuple[list[bytes], list[int]]:
        ids, numbers = [], []
        find, skip = body.find, self._skip
        at = find(_ACK_ID)
        while at >= 0:
            at += 10
            end = find(b'"', at)
            ids.append(body[at:end])
            at = find(_NUMBER, end) + 9
            end = find(b",", at)
            numbers.append(int(body[at:end]))
            at = find(_ACK_ID, end + skip)
        return ids, numbers


class Messages:
    """Assembles the published messages, `batch` in a body."""

    def __init__(self, keys: Keys, note: int) -> None:
        encode = msgspec.json.encode
        self._keys = [b'{"key":"orders.eu.%d","data":{"number":' % place for place in range(keys.count)]
        self._place = keys.place
        self._tails = [encode(payloads.order(number, note)).partition(b',"at"') for number in range(POOL)]
        self._ends = [at + tail + b"}" for _, at, tail in self._tails]

    def body(self, numbers: list[int]) -> bytes:
        keys, place, ends = self._keys, self._place, self._ends
        return b'{"messages":[%b]}' % b",".join(
            [b"%b%d%b" % (keys[place(number)], number, ends[number % POOL]) for number in numbers]
        )


class Publisher(Connection):
    """Publishes its batches, each after the previous one is answered."""

    def __init__(self, board: Board, stream: str, messages: Messages, batches: Iterator[list[int]]) -> None:
        super().__init__(board.fail)
        self._board = board
        self._messages = messages
        self._batches = batches
        self._head = request("POST", f"/v1/streams/{stream}/messages", b"?").partition(b"content-length")[0]

    def go_on(self) -> None:
        """Publish the next batch, if there is one and no consumer is too far behind."""
        if self._board.may_publish(self):
            numbers = next(self._batches, None)
            if numbers is not None:
                self._board.published += len(numbers)
                body = self._messages.body(numbers)
                self.write(self._head + b"content-length: %d\r\n\r\n" % len(body) + body)

    def answered(self, body: bytes) -> None:
        self._board.answers["publish"] += 1
        self.go_on()


def deal_batches(keys: Keys, count: int, publishers: int, batch: int) -> list[list[list[int]]]:
    """The numbers below `count` in batches for each publisher. All of a key go to one, so that their order is known."""
    numbers: list[list[int]] = [[] for _ in range(publishers)]
    for number in range(count):
        numbers[keys.place(number) % publishers].append(number)
    return [[mine[at : at + batch] for at in range(0, len(mine), batch)] for mine in numbers]
