"""The administration of a server has the same methods and results as that of a database."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from headrace import store
from headrace.admin import Admin
from headrace.admin.requests.operation import Operation
from headrace.client import Remote, Server, calls
from headrace.client.call import Call
from headrace.client.errors import Busy, StaleAckIds
from headrace.client.request import Request
from headrace.client.transport import HttpTransport
from headrace.model.conditions import field, selections
from headrace.model.errors import (
    ConfigurationError,
    HeadraceError,
    InvalidInput,
    LeaseLost,
    UnknownConsumer,
    UnknownStream,
)
from headrace.model.push import Push
from headrace.model.records import StreamInfo
from headrace.model.specs import Backoff, ConsumerSpec, StreamSpec
from headrace.model.tokens import TokenExists, UnknownToken
from tests.support.serving import serving


def _methods(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(value)
        for name, value in inspect.getmembers(kind, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }


def test_the_administration_of_a_server_has_the_methods_of_that_of_a_database() -> None:
    assert _methods(Remote) == _methods(Admin)


def _parameters(method: Any) -> list[inspect.Parameter]:
    """The parameters of a method of `Admin` without `self`, and with the criteria that it takes."""
    found = list(inspect.signature(method).parameters.values())[1:]
    if found and str(found[-1].annotation).startswith("Unpack["):
        criteria = getattr(selections, found.pop().annotation[len("Unpack[") : -1])
        found += [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for one in selections.described(criteria)
        ]
    return found


def test_every_row_of_the_table_has_the_arguments_of_the_method_of_the_database() -> None:
    for name, call in _rows().items():
        expected = _parameters(getattr(Admin, name))
        found = list(call.signature.parameters.values())
        positional = [one.name for one in expected if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        assert [one.name for one in found][: len(positional)] == positional, name
        assert {one.name: one.default for one in found} == {one.name: one.default for one in expected}, name


def test_a_required_field_of_a_body_is_a_required_argument() -> None:
    class Chosen(msgspec.Struct):
        ids: list[int]
        force: bool = False

    call = calls._call("drop", Operation("POST", "/v1/streams/{stream}/drop", "Drop", body=Chosen))
    with pytest.raises(TypeError, match="ids"):
        call.request("orders")
    assert call.request("orders", ids=[1]).body == {"ids": [1]}


def test_methods_are_documented_as_those_of_the_database() -> None:
    assert Remote.pause.__doc__ == Admin.pause.__doc__
    assert pydoc.render_doc(Remote.replay, renderer=pydoc.plaintext).count("start_seq")


@pytest.mark.asyncio
async def test_every_path_of_the_table_is_in_the_description_of_the_api(dsn: str) -> None:
    with serving(dsn) as url:
        transport = HttpTransport(Server(url))
        document = (await transport.send(Request(method="GET", path="/openapi.json"))).decode(dict[str, Any])
        transport.close()
    described = {(method, _nameless(path)) for path, item in document["paths"].items() for method in item}
    rows = [*_rows().values(), *(value for value in vars(calls).values() if isinstance(value, Call))]
    assert len(rows) > 40
    for call in rows:
        for path in filter(None, (call.path, call.path_for_all)):
            assert (call.method.lower(), _nameless(path)) in described


def _rows() -> dict[str, Call]:
    return {name: row for name, row in vars(calls.Calls).items() if isinstance(row, Call)}


def _nameless(path: str) -> str:
    return re.sub(r"{\w+}", "{}", path)


@pytest_asyncio.fixture
async def admin(database: store.Database) -> Admin:
    """The database's own administration."""
    return Admin(database)


@pytest_asyncio.fixture
async def remote(dsn: str) -> AsyncIterator[Remote]:
    """The administration of the same database over HTTP."""
    with serving(dsn) as url:
        async with Remote(url) as remote:
            yield remote


def _without_size(found: Any) -> Any:
    """The result without the sizes of streams, which may change between two calls when a table is vacuumed."""
    if isinstance(found, list):
        return [_without_size(one) for one in found]
    return msgspec.structs.replace(found, size=0) if isinstance(found, StreamInfo) else found


async def _filled(remote: Remote, messages: int = 3) -> None:
    await remote.create_stream("orders")
    # A lease that expires between two calls would be a difference.
    await remote.create_consumer(ConsumerSpec(stream="orders", name="ship", max_deliver=2, ack_wait=3600.0))
    await remote.send_many(
        "orders", [f"orders.{n}" for n in range(messages)], [f'{{"n": {n}}}' for n in range(messages)], [None] * messages
    )  # fmt: skip


class TestAgainstADatabase:
    """Calls both administrations and compares the results."""

    pytestmark = pytest.mark.asyncio

    async def test_both_return_the_same(self, admin: Admin, remote: Remote) -> None:
        await _filled(remote)
        await remote.send("orders", "orders.0", "[1, 1.50]", '{"trace": "t"}', message_id="m")
        for _ in range(2):
            await remote.send("orders", "orders.1", "2", unique_key="u", unique_while="waiting")
        await remote.send("orders", "orders.9", "1", expires_in="1h")
        await remote.send_many("orders", ["orders.8"], ["1"], [None], expires_in="1h")
        assert await remote.erase("orders", [5, 99], reason="asked for") == [5]
        await remote.send("orders", "later", "1", deliver_at=datetime.now(UTC) + timedelta(hours=1))
        first, _ = await remote.receive("orders", "ship", limit=2)
        await remote.nack("orders", "ship", [first.ack_id], delay="1h", error="no")
        await remote.pause("orders", "ship")
        operations: list[Callable[[Any], Any]] = [
            lambda side: side.streams(),
            lambda side: side.stream("orders"),
            lambda side: side.messages("orders"),
            lambda side: side.messages("orders", newest=True, limit=2),
            lambda side: side.messages("orders", filter=["orders.0", "orders.1"], where="data.n >= 0", start_seq=1),
            lambda side: side.messages("orders", where=field("n") > 0),
            lambda side: side.messages("orders", where={"field": "data.n", "op": ">", "value": 0}),
            lambda side: side.message("orders", "orders.0"),
            lambda side: side.message("orders", "none"),
            lambda side: side.standing("orders", "orders.0"),
            lambda side: side.standing("orders", "none"),
            lambda side: side.consumers(),
            lambda side: side.consumers("orders"),
            lambda side: side.consumer("orders", "ship"),
            lambda side: side.blocked_keys("orders", "ship"),
            lambda side: side.dead_letters("orders", "ship"),
            lambda side: side.republish("orders", "orders", dry_run=True),
            lambda side: side.erasures("orders"),
            lambda side: side.replay("orders", "ship", start_seq=1, end_seq=1, dry_run=True),
            lambda side: side.redrive("orders", "ship", dry_run=True),
            lambda side: side.purge("orders", "ship", dry_run=True),
            lambda side: side.tokens(),
            lambda side: side.sources(),
        ]
        for operation in operations:
            assert _without_size(await operation(remote)) == _without_size(await operation(admin))
        peeked = await remote.peek("orders", "ship")
        assert [(one.seq, one.state, one.attempts, one.until, one.owner) for one in peeked] == [
            (one.seq, one.state, one.attempts, one.until, one.owner) for one in await admin.peek("orders", "ship")
        ]
        ours, theirs = await remote.snapshot(), await admin.snapshot()
        assert [(one.name, one.messages, one.last_seq) for one in ours.streams] == [
            (one.name, one.messages, one.last_seq) for one in theirs.streams
        ]
        assert [(one.stream, one.name, one.lag, one.in_flight) for one in ours.consumers] == [
            (one.stream, one.name, one.lag, one.in_flight) for one in theirs.consumers
        ]
        assert [(one.info, one.backfills) for one in ours.sources] == [
            (one.info, one.backfills) for one in theirs.sources
        ]
        assert [one.pid for one in await remote.processes()] == [one.pid for one in await admin.processes()]

    async def test_dead_letters_come_as_they_are(self, admin: Admin, remote: Remote) -> None:
        await _filled(remote)
        await remote.edit_consumer("orders", "ship", max_deliver=1, on_exhausted="block")
        received = await remote.receive("orders", "ship", limit=3)
        await remote.nack("orders", "ship", [one.ack_id for one in received], error="no stock")
        assert await remote.dead_letters("orders", "ship") == await admin.dead_letters("orders", "ship")
        assert await remote.dead_letter("orders", "ship", 2) == await admin.dead_letter("orders", "ship", 2)
        assert await remote.blocked_keys("orders", "ship") == await admin.blocked_keys("orders", "ship")
        assert await remote.redrive("orders", "ship", seqs=[1]) == 1
        assert await remote.purge("orders", "ship", filter="orders.*", where="data.n > 1") == 1
        assert [one.seq for one in await admin.dead_letters("orders", "ship")] == [2]

    async def test_an_edit_returns_the_new_settings(self, admin: Admin, remote: Remote) -> None:
        await _filled(remote)
        stream = await remote.edit_stream("orders", retain_up_to="7d", max_storage=10**9)
        assert stream == StreamSpec(name="orders", retain_up_to=604800, max_storage=10**9)
        assert await remote.edit_stream("orders", retain_up_to=None) == StreamSpec(name="orders", max_storage=10**9)
        changes: list[dict[str, Any]] = [
            {"where": "data.total > 100", "filter": ["a", "b.>"]},
            {"where": field("total") > 2, "filters": (">",)},
            {"where": None, "ack_wait": "1m", "rate_limit": "60/m", "rate_burst": 3},
            {"rate_limit": None},
            {"backoff": ["1s", 2]},
            {"backoff": Backoff(base=2.0, jitter=0.0)},
            {"backoff": None, "ordered": False, "max_waiting": 5, "max_ack_pending": 7},
        ]
        for change in changes:
            spec = await remote.edit_consumer("orders", "ship", **change)
            assert spec == await admin.edit_consumer("orders", "ship", **change)

    @pytest.mark.parametrize(
        "spec",
        [
            ConsumerSpec(stream="orders", name="plain"),
            ConsumerSpec(
                stream="orders", name="all", filters=("a.>", "b"), where=field("x") > 1, ordered=False, ack_wait=1.5,
                max_ack_pending=3, max_deliver=-1, backoff=Backoff(delays=(1.0, 2.5)), on_exhausted="block", max_waiting=3,
                deliver_policy="by_start_time", start_time=datetime(2026, 1, 1, tzinfo=UTC), rate_limit=2.5, rate_burst=4, history=3600.0,
            ),
            ConsumerSpec(stream="orders", name="new", deliver_policy="new", backoff=Backoff(base=3.0)),
            ConsumerSpec(
                stream="orders", name="push",
                push=Push(url="https://example.com/x", headers={"a": "b"}, secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                          timeout=2.5, batch=10, concurrency=(2, 3)),
            ),
        ],
        ids=lambda spec: spec.name,
    )  # fmt: skip
    async def test_a_consumer_made_over_http_is_the_same_as_one_made_here(
        self, admin: Admin, remote: Remote, database: store.Database, spec: ConsumerSpec
    ) -> None:
        await remote.create_stream("orders")
        assert await remote.create_consumer(spec)
        number = await store.consumer_id(database, "orders", spec.name)
        assert (await store.consumer_spec(database, number))[0] == spec
        assert not await remote.create_consumer(spec)
        assert not await admin.create_consumer(spec)
        for side in (admin, remote):
            with pytest.raises(InvalidInput, match="max_deliver is"):
                await side.create_consumer(ConsumerSpec(stream="orders", name=spec.name, max_deliver=77))

    async def test_a_stream_made_over_http_is_the_same_as_one_made_here(self, admin: Admin, remote: Remote) -> None:
        spec = StreamSpec(
            name="x", retain_up_to=90.5, retain_at_least=1.0, max_storage=2**40, one_message_per_key=True, dedupe=True,
            tombstones=True, dedupe_window=0.5,
        )  # fmt: skip
        assert await remote.create_stream(spec)
        assert not await admin.create_stream(spec)
        assert not await remote.create_stream(spec)
        for side in (admin, remote):
            with pytest.raises(InvalidInput, match="dedupe_window is"):
                await side.create_stream("x")

    async def test_missing_objects_raise_the_same_errors(self, admin: Admin, remote: Remote) -> None:
        await _filled(remote)
        operations: list[tuple[Callable[[Any], Any], type[HeadraceError]]] = [
            (lambda side: side.stream("nope"), UnknownStream),
            (lambda side: side.message("nope", "a"), UnknownStream),
            (lambda side: side.standing("nope", "a"), UnknownStream),
            (lambda side: side.consumer("orders", "nope"), UnknownConsumer),
            (lambda side: side.consumer("nope", "ship"), UnknownStream),
            (lambda side: side.dead_letter("orders", "ship", 5), InvalidInput),
            (lambda side: side.seek("orders", "ship", 10**6), InvalidInput),
            (lambda side: side.seek("orders", "ship", "yesterday"), InvalidInput),
            (lambda side: side.revoke_token("nope"), UnknownToken),
            (lambda side: side.receive("orders", "nope"), UnknownConsumer),
            (lambda side: side.edit_consumer("orders", "ship", max_deliver=0), ConfigurationError),
            (lambda side: side.edit_consumer("orders", "ship", nope=1), InvalidInput),
            (lambda side: side.send("orders", "a..b", "1"), InvalidInput),
        ]
        for operation, kind in operations:
            for side in (admin, remote):
                with pytest.raises(kind):
                    await operation(side)


@pytest.mark.asyncio
async def test_seeks_to_every_kind_of_place(remote: Remote) -> None:
    await _filled(remote)
    assert await remote.seek("orders", "ship", 3) == 2
    assert await remote.seek("orders", "ship", "end") == 3
    assert await remote.seek("orders", "ship", "start") == 0
    assert await remote.seek("orders", "ship", datetime.now(UTC) - timedelta(hours=1)) == 0


@pytest.mark.asyncio
async def test_an_ack_of_what_was_lost_names_it(remote: Remote) -> None:
    await _filled(remote)
    first, second = await remote.receive("orders", "ship", limit=2)
    assert await remote.ack("orders", "ship", [first.ack_id]) == []
    assert await remote.ack("orders", "ship", [first.ack_id, second.ack_id]) == [first.ack_id]
    assert await remote.nack("orders", "ship", [second.ack_id]) == [second.ack_id]
    assert (await remote.consumer("orders", "ship")).num_ack_pending == 0


@pytest.mark.asyncio
async def test_a_loop_settles_one_batch_with_the_request_for_the_next(admin: Admin, remote: Remote) -> None:
    await _filled(remote, 8)
    for side in (admin, remote):
        acked, nacked = await side.receive("orders", "ship", limit=2)
        again, other = await side.receive("orders", "ship", limit=2, ack_ids=[acked.ack_id], nack_ids=[nacked.ack_id])
        assert [(again.key, again.attempt), other.attempt] == [(nacked.key, 2), 1]
        settled = [again.ack_id, other.ack_id]
        (left,) = await side.receive("orders", "ship", ack_ids=[*settled, acked.ack_id])  # one is acked already
        assert sorted(await side.ack("orders", "ship", settled)) == sorted(settled)
        await side.nack("orders", "ship", [left.ack_id])


@pytest.mark.asyncio
async def test_a_receiver_that_goes_away_while_it_waits_takes_nothing_along(remote: Remote) -> None:
    await _filled(remote, 0)
    await remote.edit_consumer("orders", "ship", max_waiting=1)

    async def a_request_waits() -> bool:
        try:
            return bool(await remote.receive("orders", "ship"))
        except Busy:
            return True

    waiting = asyncio.create_task(remote.receive("orders", "ship", wait=600))
    async with asyncio.timeout(30):
        while not await a_request_waits():  # each attempt takes some time
            pass
        waiting.cancel()
        while await a_request_waits():
            pass
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await remote.send("orders", "a", "1")
    (received,) = await remote.receive("orders", "ship", wait=30)
    assert received.attempt == 1


@pytest.mark.asyncio
async def test_a_server_with_tokens_wants_one(dsn: str) -> None:
    with serving(dsn) as url:
        async with Remote(url) as anybody:
            made = await anybody.create_token("ci", ["publish:orders", "admin:orders"], expires_in="1h")
            assert made.token.startswith("hr_")
            with pytest.raises(ConfigurationError, match=r"--token.*headrace context"):
                await anybody.streams()
        async with Remote(url, token=made.token) as ours:
            await ours.create_stream("orders")
            with pytest.raises(ConfigurationError, match="is not allowed"):
                await ours.create_stream("parcels")


@pytest.mark.asyncio
async def test_tokens_are_made_listed_and_revoked(dsn: str, admin: Admin) -> None:
    with serving(dsn) as url:
        all_of_it = await admin.create_token("root", ["admin"])
        async with Remote(url, token=all_of_it.token) as remote:
            made = await remote.create_token("ci", ["publish"])
            with pytest.raises(TokenExists):
                await remote.create_token("ci", ["publish"])
            assert (await remote.revoke_token("ci")).id == made.id
            assert await remote.tokens() == await admin.tokens()


def test_a_lost_lease_is_one_for_both() -> None:
    assert issubclass(StaleAckIds, LeaseLost)
