"""Push consumers that are created, changed and deleted while a server runs."""

from __future__ import annotations

import asyncio
import logging
from uuid import uuid4

import httpx
import pytest
from aiohttp import web

from headrace import App, Message, Next, store
from headrace.model.specs import Backoff, ConsumerSpec
from headrace.server.asgi import Server
from headrace.server.options import Options
from headrace.server.push import PushConsumers
from tests.runtime.running import WITHIN, Gate, eventually
from tests.server.calling import Api
from tests.server.push.endpoints import Answer, Endpoint, PushApp, Request, always, listening, running_push
from tests.support.logs import logged
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio


def held(gate: Gate, times: list[int] | None = None) -> Answer:
    """An answer that waits until the gate opens."""

    async def answer(request: Request) -> web.StreamResponse:
        if times is not None:
            times.append(request.message["attempt"])
        await gate.wait()
        return web.Response(status=204)

    return answer


async def test_a_consumer_that_another_server_has_made_is_found_before_long(dsn: str, endpoint: Endpoint) -> None:
    async with running_push(dsn, refresh_interval=0.05) as push_app:
        push_app.push_consumers.refresh = lambda: None  # type: ignore[method-assign]  # the app did not make it
        await push_app.declare(endpoint.url)
        await push_app.app.publish("orders", "k", 1)
        await endpoint.until(1)


async def test_changes_over_http_take_effect_at_once_in_the_same_server(dsn: str, endpoint: Endpoint) -> None:
    app = App(dsn)
    # The interval is longer than any test, so that only the change itself triggers a look-up.
    server = Server(app, Options(push_allow=("loopback",), push_refresh_interval=3600.0))
    transport = httpx.ASGITransport(app=server)
    ship = "/streams/orders/consumers/ship"
    async with (
        listening(Endpoint()) as elsewhere,
        app.running(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        api = Api(client, server)
        await api.stream()
        await api.consumer(kind="push", push={"url": endpoint.url})
        await api.publish(("k", 1))
        await endpoint.until(1)
        await api.call("PATCH", ship, {"push": {"url": elsewhere.url}})

        async def is_sent_elsewhere() -> bool:
            await api.publish(("k", 2))
            return bool(elsewhere.data)

        await eventually(is_sent_elsewhere)  # messages published meanwhile may still go to the old URL
        await api.call("DELETE", ship, force=True)

        async def is_left() -> bool:
            return not server.push_consumers.statistics()

        await eventually(is_left)


async def test_a_url_that_is_edited_counts_at_once_and_nothing_is_sent_twice(
    push_app: PushApp, endpoint: Endpoint
) -> None:
    async with listening(Endpoint()) as elsewhere:
        gate = Gate()
        endpoint.answer = held(gate)
        await store.create_stream(push_app.app.database, "orders")
        await push_app.app.publish_many("orders", [(f"k.{n}", n) for n in range(10)])
        await push_app.declare(endpoint.url, concurrency=(2, 2))
        await gate.until(2)
        await push_app.declare(elsewhere.url, concurrency=(2, 2))

        async def rest_is_given_back() -> bool:
            return (await push_app.info()).in_flight == 2

        await eventually(rest_is_given_back)
        gate.open()  # requests in flight finish at the old URL
        await push_app.done()
        assert len(endpoint.requests) == 2
        assert sorted(endpoint.data + elsewhere.data) == list(range(10))


async def test_other_settings_don_t_interrupt_anything(
    push_app: PushApp, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    await push_app.declare(endpoint.url, ack_wait=30.0)
    await push_app.app.publish("orders", "k", 1)
    await push_app.done()
    await push_app.declare(endpoint.url, ack_wait=60.0)
    await push_app.app.publish("orders", "k", 2)
    await push_app.done()
    assert len(endpoint.requests) == 2
    assert not logged(caplog, "push settings changed")


async def test_a_consumer_that_is_pushed_no_longer_is_left_to_its_clients(
    push_app: PushApp, endpoint: Endpoint
) -> None:
    number = await push_app.declare(endpoint.url)
    await push_app.app.publish("orders", "k", 1)
    await push_app.done()
    await store.declare_consumer(push_app.app.database, ConsumerSpec(stream="orders", name="ship"))
    push_app.push_consumers.refresh()

    async def is_left() -> bool:
        return not push_app.push_consumers.statistics()

    await eventually(is_left)
    await push_app.app.publish("orders", "k", 2)
    batch = await store.lease(push_app.app.database, number, uuid4(), 10)
    assert batch.data == ["2"]
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("is_notified", [True, False])
async def test_a_consumer_that_is_deleted_while_it_is_pushed_ends_alone(
    push_app: PushApp, endpoint: Endpoint, is_notified: bool
) -> None:
    gate = Gate()
    endpoint.answer = held(gate)
    number = await push_app.declare(endpoint.url)
    await push_app.app.publish("orders", "k", 1)
    await gate.until(1)
    await store.delete_consumer(push_app.app.database, number, force=True)
    if is_notified:
        push_app.push_consumers.refresh()
    else:  # its own lease call notices the change
        await push_app.app.publish("orders", "k", 2)
    gate.open()

    async def is_left() -> bool:
        return not push_app.push_consumers.statistics()

    await eventually(is_left)
    endpoint.answer = always(204)
    await push_app.declare(endpoint.url, "another")
    await push_app.done("another")


async def test_a_push_consumer_that_is_made_anew_is_pushed_while_the_old_ones_requests_end(
    push_app: PushApp, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    gate = Gate()
    endpoint.answer = held(gate)
    number = await push_app.declare(endpoint.url)
    await push_app.app.publish("orders", "k", 1)
    await gate.until(1)
    await store.delete_consumer(push_app.app.database, number, force=True)
    async with listening(Endpoint()) as elsewhere:
        await push_app.declare(elsewhere.url)
        await elsewhere.until(1)
        gate.open()
        await push_app.done()
        assert (elsewhere.data, len(endpoint.requests)) == ([1], 1)
    assert len(logged(caplog, "push consumer removed", consumer="ship", stream="orders")) == 1


async def test_the_request_of_a_cancelled_message_is_given_up_and_the_next_one_of_its_key_is_sent(
    push_app: PushApp, endpoint: Endpoint
) -> None:
    endpoint.answer = held(Gate())
    await push_app.declare(endpoint.url)
    await push_app.app.publish_many("orders", [("k", 1), ("k", 2)])
    await endpoint.until(1)
    endpoint.answer = always(204)
    assert (await push_app.app.admin.cancel("orders", "ship", seqs=[1])).stopping == 1
    await push_app.done()
    assert endpoint.data == [1, 2]


async def test_a_server_that_stops_lets_requests_end(dsn: str, endpoint: Endpoint) -> None:
    gate = Gate()
    endpoint.answer = held(gate)
    async with running_push(dsn) as push_app:
        await push_app.declare(endpoint.url)
        await push_app.app.publish("orders", "k", 1)
        await gate.until(1)
        push_app.app.stop()
        gate.open()
    async with running_push(dsn) as push_app:
        info = await push_app.done()
    assert (len(endpoint.requests), info.dead_letters) == (1, 0)


async def test_a_server_that_stops_while_it_finds_a_consumer_does_not_begin_to_push_it(
    dsn: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, look_up, stops = App(dsn), store.consumer_spec, list[int]()
    app.consumer("events", name="idle")(lambda payload: None)
    push_app = PushApp(app, PushConsumers(("loopback",)))
    app.attach(push_app.push_consumers)

    async def stop_meanwhile(database: store.Database, number: int) -> tuple[ConsumerSpec, int]:
        found = await look_up(database, number)
        if found[0].name == "ship" and not stops:
            stops.append(number)
            app.stop()
        return found

    async with app:
        await push_app.declare(endpoint.url)
        await app.publish("orders", "k", 1)
        monkeypatch.setattr(store, "consumer_spec", stop_meanwhile)
        async with asyncio.timeout(WITHIN):
            await app.run(signals=False)
    assert endpoint.requests == []


async def test_a_request_interrupted_by_a_shutdown_does_not_count_as_an_attempt(dsn: str, endpoint: Endpoint) -> None:
    gate, attempts = Gate(), list[int]()
    endpoint.answer = held(gate, attempts)
    async with running_push(dsn) as push_app:
        await push_app.declare(endpoint.url)
        await push_app.app.publish_many("orders", [("k", 1), ("k", 2)])
        await gate.until(1)
        push_app.app.stop()
        push_app.app.stop()  # twice stops it immediately
    gate.open()
    async with running_push(dsn) as push_app:
        await push_app.done()
    assert endpoint.data == [1, 1, 2]
    assert attempts == [1, 1, 1]


async def test_an_app_can_push_again_after_it_has_stopped(dsn: str, endpoint: Endpoint) -> None:
    async with running_push(dsn) as push_app:
        await push_app.declare(endpoint.url)
        app = push_app.app
    async with app.running():
        await app.publish("orders", "k", 1)
        await endpoint.until(1)


async def test_pushing_that_is_drained_before_it_has_begun_ends_and_works_the_next_time(
    dsn: str, endpoint: Endpoint
) -> None:
    app = App(dsn)
    push = PushConsumers(("loopback",))
    app.attach(push)
    async with asyncio.timeout(30):
        with pytest.raises(ZeroDivisionError):
            async with app.running():
                raise ZeroDivisionError
        async with app.running():
            await PushApp(app, push).declare(endpoint.url)
            await app.publish("orders", "k", 1)
            await endpoint.until(1)


async def test_invalid_settings_of_one_consumer_do_not_stop_the_others(
    push_app: PushApp, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    number = await push_app.declare(endpoint.url, "broken")
    await push_app.app.database.fetch(
        'update headrace_internal.consumers set push = \'{"url": "gopher://x"}\', version = version + 1 where id = $1',
        number,
    )
    await push_app.declare(endpoint.url, "fine")
    await push_app.app.publish("orders", "k", 1)
    await push_app.done("fine")
    await until(lambda: bool(logged(caplog, "push consumer failed")))  # in a task of its own


async def test_a_stored_url_that_is_invalid_today_is_refused_and_can_be_changed(
    dsn: str, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(dsn)
    server = Server(app, Options(push_allow=("loopback",), push_refresh_interval=3600.0))
    transport = httpx.ASGITransport(app=server)
    ship = "/streams/orders/consumers/ship"
    async with app.running(), httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        api = Api(client, server)
        await api.stream()
        await api.consumer("old", kind="push", push={"url": endpoint.url})
        await api.consumer(kind="pull")
        await app.database.fetch(
            "update headrace_internal.consumers set push = json_build_object('url', $1::text), version = version + 1"
            " where name = 'ship'",
            f"http://{'a' * 300}.example/hidden",
        )
        changed = await api.call("PATCH", ship, {"max_deliver": 7})  # which causes a look-up, too
        assert changed["max_deliver"] == 7

        async def is_logged() -> bool:
            return bool(logged(caplog, "push consumer failed"))

        await eventually(is_logged)
        assert "of the push URL is invalid" in app.statistics()["consumers"]["orders:ship"]["reason"]
        assert "hidden" not in caplog.text
        assert (await api.get(ship))["push"]["url"].startswith("http://aaa")
        answer = await api.refused("PATCH", ship, {"push": {"timeout_ms": 5000}}, status=422)
        assert "of the push URL is invalid" in answer["summary"], "what is written is valid as a whole"
        await api.call("PATCH", ship, {"push": {"url": endpoint.url}})
        await api.publish(("k", 1))
        await endpoint.until(2)  # one of each consumer, immediately and not after the delay of a restart
        assert "decisions" in app.statistics()["consumers"]["orders:ship"]


async def test_a_paused_consumer_is_not_pushed(push_app: PushApp, endpoint: Endpoint) -> None:
    number = await push_app.declare(endpoint.url)
    await store.pause(push_app.app.database, number)
    await push_app.app.publish("orders", "k", 1)
    await push_app.declare(endpoint.url, "other")
    await push_app.done("other")
    assert len(endpoint.requests) == 1
    await store.resume(push_app.app.database, number)
    await push_app.done()
    assert len(endpoint.requests) == 2


async def test_middleware_is_for_the_apps_own_handlers(dsn: str, endpoint: Endpoint) -> None:
    app = App(dsn)

    @app.middleware
    async def refusing(message: Message, call_next: Next) -> None:
        raise ValueError("not through here")

    async with running_push(dsn, app=app) as push_app:
        await push_app.declare(endpoint.url, backoff=Backoff.of(0), max_deliver=1)
        await push_app.app.publish("orders", "k", 1)
        info = await push_app.done()
    assert (len(endpoint.requests), info.dead_letters) == (1, 0)
