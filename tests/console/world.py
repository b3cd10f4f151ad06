"""A live server with load: messages flow, some fail, some block their keys, and a consumer is paused.

All of it runs in one thread beside the test, with a proxy before the database that can be cut.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace import App, Message, Reject, transform
from headrace.model.push import Push
from headrace.model.specs import ConsumerSpec
from headrace.server.asgi import Server
from headrace.server.options import Options
from headrace.server.serve import ServerRunner
from headrace.sources.postgres.spec import PostgresSpec
from headrace.sources.webhook import WebhookSpec
from tests.support.silence import Proxy

PATIENCE = 60.0
"""Seconds within which the server is ready."""

SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX"
PROXY_USER = "X-Forwarded-User"
COUNTRIES = ("us", "de", "fr", "jp")

TABLES = (
    "create table products (id int primary key, name text not null, price numeric)",
    "create table returns (id int primary key, reason text)",
    "insert into products select n, 'product ' || n, n * 1.5 from generate_series(1, 400) as n",
)
BACKFILL_RATE = 40
"""Rows a second, so that a backfill of the products is seen under way."""

T = TypeVar("T")


class WarehouseClosed(Exception):
    """A failure of the handlers below."""


@transform
def priced(data: Any) -> Any:
    """A transform that fails on some rows."""
    if data["record"]["price"] is None:
        raise ValueError("a product without a price can't be sold")
    return data


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer requests of push consumers: `/away` is never well, and `/receipts` fails at times."""
    answered = 0
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            lines = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            await reader.readexactly(int(lines.get("content-length", 0)))
            answered += 1
            well = not head.startswith("post /away") and answered % 9 != 4
            status = b"200 OK" if well else b"503 Service Unavailable"
            writer.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\n\r\n" % status)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def _declare(app: App) -> None:
    @app.consumer("orders", name="ship", max_deliver=2, backoff=0.05)
    async def ship(message: Message) -> None:
        if message.seq % 11 == 0:
            raise WarehouseClosed(f"the warehouse {message.seq % 3} is closed")
        if message.seq % 17 == 0:
            raise Reject("no such product")

    app.every(
        "0 9 * * 1-5", "payments", name="digest", zone="Europe/Berlin", data={"kind": "digest"}, unique_key="digest"
    )
    app.every("1h", "payments", name="reminders", key="reminders", data={"hours": 1}, missed="catch_up")

    @app.consumer("orders", name="bill", on_exhausted="block", max_deliver=1)
    async def bill(message: Message) -> None:
        if message.seq % 40 == 7:
            raise PermissionError("the card was refused")

    @app.consumer("orders", name="notify", max_deliver=5, backoff=3600.0)
    async def notify(message: Message) -> None:
        if message.seq % 50 == 3:
            raise TimeoutError("the mail server does not answer")


class World:
    """A running server.

    Attributes:
        url: its URL.
        target: the URL to which push consumers send.
        admin, reader: tokens for everything, and to read the stream `orders`.
        app: the app, whose loop is that of the server.
    """

    def __init__(self, dsn: str) -> None:
        self.url = self.target = ""
        self.admin = self.reader = ""
        self.app: App
        self._dsn = dsn
        self._proxy: Proxy
        self._loop: asyncio.AbstractEventLoop
        self._runner: ServerRunner
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._load = asyncio.Event()

    def do(self, work: Callable[[App], Awaitable[T]]) -> T:
        """Do something with the app, in its loop."""

        async def run() -> T:
            return await work(self.app)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE)

    def cut(self) -> None:
        """Take the database away."""
        self._loop.call_soon_threadsafe(self._proxy.refuse)

    def heal(self) -> None:
        """Bring the database back."""
        asyncio.run_coroutine_threadsafe(self._proxy.listen(), self._loop).result(PATIENCE)

    def until(self, holds: Callable[[App], Awaitable[bool]]) -> None:
        """Wait until something holds."""

        async def wait(app: App) -> None:
            async with asyncio.timeout(PATIENCE):
                while not await holds(app):  # noqa: ASYNC110 - nothing reports it
                    await asyncio.sleep(0.02)

        self.do(wait)

    def serve(self) -> None:
        """Run until `stop`. It is the thread."""
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        self._ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._proxy = Proxy(self._dsn)
        await self._proxy.listen()
        targets = await asyncio.start_server(_answer, "127.0.0.1", 0)
        self.target = f"http://127.0.0.1:{targets.sockets[0].getsockname()[1]}"
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.app = App(self._proxy.url(), streams=["orders", "payments", "emails"])
        _declare(self.app)
        options = Options(
            push_allow=("loopback",), push_refresh_interval=0.5, proxy_user_header=PROXY_USER, proxy_from=("127.0.0.1",), proxy_token="people",
            trace_url="https://traces.example/trace/{trace_id}",
        )  # fmt: skip
        server = Server(self.app, options)
        self._runner = ServerRunner(
            self.app,
            server,
            listening,
            before_listening=self._prepare,
            on_listening=self._ready.set,
        )
        self._runner.tasks.append(self._publish)
        try:
            await self._runner.run(signals=False)
        finally:
            listening.close()
            targets.close()
            await self._proxy.close()

    async def _prepare(self) -> None:
        admin = self.app.admin
        self.admin = (await admin.create_token("ops", ["admin"])).token
        await admin.create_token("people", ["consume"])
        self.reader = (await admin.create_token("reader", ["consume:orders"])).token
        await admin.create_consumer(ConsumerSpec(stream="payments", name="ledger"))
        await admin.create_consumer(ConsumerSpec(stream="emails", name="send", max_deliver=3))
        await admin.pause("payments", "ledger", None)
        await admin.create_source(WebhookSpec(name="shop", stream="payments", signature="standard", secrets=(SECRET,)))
        for name, path in (("receipts", "receipts"), ("erp", "away")):
            push = Push(url=f"{self.target}/{path}", headers={"x-key": "s3cr3t"}, timeout=2.0)
            await admin.create_consumer(ConsumerSpec(stream="payments", name=name, push=push))
        for statement in TABLES:
            await self.app.database.fetch(statement)
        await admin.create_stream("products")
        transform = f"{__name__}:priced"
        for spec in (
            PostgresSpec(
                name="warehouse", stream="products", tables=("public.products",), backfill=False, rate=BACKFILL_RATE,
                transform=transform,
            ),
            PostgresSpec(name="returns", stream="products", tables=("public.returns",), backfill=False, publication="returns"),
        ):  # fmt: skip
            await admin.create_source(spec)
        await self.app.publish_many("orders", [_order(number) for number in range(1, 201)])
        for number in range(1, 6):
            reminder = {"to": f"customer-{number}", "template": "reminder"}
            await self.app.publish(
                "emails", f"emails.{number}", reminder, delay=f"{number}d", unique_key=f"reminder-{number}"
            )

    async def _publish(self) -> None:
        """Publish a few messages a second. An outage is waited out."""
        number = 200
        while True:
            try:
                await self.app.publish_many("orders", [_order(number := number + 1) for _ in range(2)])
                await self.app.publish("payments", f"payments.{number}", {"amount": number})
            except Exception:
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.2)

    def stop(self) -> None:
        """Begin to end it."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._runner.stop)


def _order(number: int) -> tuple[str, Any]:
    country = COUNTRIES[number % len(COUNTRIES)]
    data = {
        "id": number,
        "customer": f"customer-{number % 31}",
        "total": number * 7 % 500,
        "card": 9007199254740993 + number,
    }
    return f"orders.{country}.{number % 31}", {**data, "items": [{"sku": f"A-{number % 9}", "count": number % 3 + 1}]}


@contextmanager
def world(dsn: str) -> Iterator[World]:
    """Run a server with load on a database with the schema."""
    made = World(dsn)
    thread = threading.Thread(target=made.serve, name="console world")
    thread.start()
    try:
        assert made._ready.wait(PATIENCE), "the server doesn't start"
        if made._failure is not None:
            raise made._failure
        made.until(_in_motion)
        yield made
    finally:
        made.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server doesn't end"
    if made._failure is not None:
        raise made._failure


async def _in_motion(app: App) -> bool:
    """Return whether there is something of each kind to be seen."""
    ship, bill, notify = [await app.admin.consumer("orders", name) for name in ("ship", "bill", "notify")]
    return ship.dead_letters >= 20 and bill.blocked >= 1 and bill.dead_letters >= 3 and notify.parked >= 2


def deliver(url: str, body: dict[str, Any], *, secret: str = SECRET) -> int:
    """Send a webhook. Returns the status of the answer."""
    import base64

    text, sent_at, delivery = json.dumps(body).encode(), str(int(time.time())), f"msg_{time.time_ns()}"
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = b".".join((delivery.encode(), sent_at.encode(), text))
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    headers = {
        "content-type": "application/json", "webhook-id": delivery, "webhook-timestamp": sent_at,
        "webhook-signature": f"v1,{signature}",
    }  # fmt: skip
    request = urllib.request.Request(f"{url}/v1/webhook/shop", text, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
