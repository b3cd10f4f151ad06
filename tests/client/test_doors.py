"""Every operation has the same effect and refuses the same through every door: the method of `Admin`, the method of `Remote`,
the route, and the command if there is one.

The cases follow from the rows of `OPERATIONS`: one without a body, and one for each field of the body.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import json
import re
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from string import Formatter
from types import MappingProxyType
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from docsite.reference.operations import STREAM, command_of, scope_of
from headrace import App, store
from headrace.admin import Admin
from headrace.admin.requests import operation as paths
from headrace.admin.requests.operation import CONSUMER, DATABASE, SCHEDULE, SOURCE, TOKEN, Count, Operation
from headrace.admin.requests.operations import OPERATIONS
from headrace.cli.errors import UsageError
from headrace.cli.main import call
from headrace.cli.tree import build
from headrace.client import Remote
from headrace.client.request import iso, path_of
from headrace.model.errors import ERROR_CODES, HeadraceError, InvalidInput, UnknownConsumer
from headrace.model.specs import ConsumerSpec
from headrace.model.watching.completions import CompletionPage
from headrace.server.options import Options
from headrace.store import CaptureBatch, CaptureFailure
from tests.support import servers
from tests.support.capturers import begun
from tests.support.serving import serving

LONG_AGO, FAR_AWAY = datetime(2001, 1, 1, tzinfo=UTC), datetime(2101, 1, 1, tzinfo=UTC)

VALUES: dict[str, Any] = {
    "key": "k.1", "filter": ["k.1", "k.2"], "where": "data.n >= 2", "reason": "rejected", "error_type": "ValueError", "error": "no stock",
    "since": FAR_AWAY, "until": LONG_AGO, "seqs": [2], "start_seq": 2, "end_seq": 2, "start_time": FAR_AWAY, "end_time": LONG_AGO,
    "dry_run": True, "unique_key": "one", "anew": True, "tables": ["public.items"], "rate": 7, "repair": True,
    "pause.until": FAR_AWAY, "seq": 2, "limit": 1, "before": "2001-01-01T00:00:00+00:00,1,1",
}  # fmt: skip
"""A value for each field of a body, except for those of an object, see `Object.values`."""

INVALID: dict[str, Any] = {
    "key": "", "filter": "k..1", "where": "data.n >", "seqs": [0], "start_seq": 0, "end_seq": 0, "tables": ["public.nope"], "rate": 0,
    "ids": [0], "id": "nope", "reason": "tired",
}  # fmt: skip
"""A value that each door refuses."""

OPTIONS = {"start_seq": "--from", "end_seq": "--to", "start_time": "--from", "end_time": "--to", "ids": "--id"}
"""The options whose names are not those of the fields."""

Refs = tuple[str, ...]
Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine on the loop of a world, which keeps running between two calls, for the timers of its connections."""


class Outcome(NamedTuple):
    """The answer of a door: the count of an operation that counts or lists, or why it was refused."""

    counted: int | None = None
    refused: str | None = None
    exit_code: int = 0


class World:
    """A database with a server before it, and objects that are made for each door."""

    def __init__(
        self,
        run: Run,
        database: store.Database,
        url: str,
        token: str,
        remote: Remote,
        client: httpx.Client,
    ) -> None:
        self.run = run
        self.client = client
        self.database, self.url, self.token, self.remote = database, url, token, remote
        self.admin = Admin(database)
        self._made = 0

    def make(self, operation: Operation) -> Object:
        """Make an object on which the operation has something to do."""
        self._made += 1
        subject = max((path for path in SUBJECTS if operation.path.startswith(path)), key=len)
        made: Object = self.run(SUBJECTS[subject](self, f"n{self._made}"))
        return made

    async def until_dead(self, name: str) -> None:
        """Let the first three messages of a consumer die, for two reasons."""
        received = await self.admin.receive("orders", name, limit=4)
        await self.admin.nack("orders", name, [received[0].ack_id], error="no stock")
        await self.admin.nack("orders", name, [one.ack_id for one in received[1:3]], error="no money")
        await self.admin.ack("orders", name, [received[3].ack_id])


class Object(NamedTuple):
    """An object of an operation.

    Attributes:
        refs: the names in the operation's path.
        state: returns what the operation may change.
        values: the values of fields that are ids of something that it has.
    """

    refs: Refs
    state: Callable[[], Coroutine[Any, Any, list[Any]]]
    values: Mapping[str, Any] = MappingProxyType({})


async def _consumer(world: World, name: str) -> Object:
    await world.admin.create_consumer(ConsumerSpec(stream="orders", name=name, max_deliver=1, history=3600.0))
    await world.until_dead(name)

    async def state() -> list[Any]:
        consumer = await world.admin.consumer("orders", name)
        return [consumer, await world.admin.dead_letters("orders", name), await world.admin.peek("orders", name)]

    return Object(("orders", name), state)


async def _source(world: World, name: str) -> Object:
    settings = {"tables": ["public.orders", "public.items", "public.carts"], "database": None}
    await store.create_source(world.database, name, "postgres", "orders", settings)
    number, epoch = await begun(world.database, name)
    failed = [CaptureFailure(key="k", data=f'{{"n": {n}}}', error="no") for n in range(3)]
    await store.append_captured(world.database, number, epoch, "orders", CaptureBatch(failures=failed))
    backfill = await store.start_backfill(
        world.database, (await store.source(world.database, name)).id, "public.orders"
    )
    assert backfill is not None

    async def state() -> list[Any]:
        admin = world.admin
        return [await admin.source(name), await admin.backfills(name), await admin.failures(name)]

    first = (await world.admin.failures(name))[0].id
    return Object((name,), state, {"id": backfill, "ids": [first], "where": "data.record.total > 100"})


async def _schedule(world: World, name: str) -> Object:
    app = App()
    app.every("@daily", "orders", name=name, data={})
    (schedule,) = app.schedules
    await store.declare_schedule(world.database, schedule.spec)

    async def state() -> list[Any]:
        return [one for one in await world.admin.schedules() if one.name == name]

    return Object((name,), state)


async def _database(world: World, name: str) -> Object:
    await world.admin.add_database(name, "env:HR_TEST_OTHER", unchecked=True)

    async def state() -> list[Any]:
        return [one for one in await world.admin.databases() if one.name == name]

    return Object((name,), state)


async def _token(world: World, name: str) -> Object:
    await world.admin.create_token(name, ["consume"])

    async def state() -> list[Any]:
        return [one for one in await world.admin.tokens() if one.name == name]

    return Object((name,), state)


async def _stream(world: World, name: str) -> Object:
    await world.admin.create_stream(name)
    await world.admin.create_consumer(ConsumerSpec(stream=name, name="ship"))
    await world.admin.send_many(name, ["k.1", "k.2"], ["1", "2"], [None, None])
    for key in ("k.3", "k.4"):
        await world.admin.send(name, key, "3", deliver_at=FAR_AWAY)
    first = (await world.admin.scheduled_messages(name))[0].id

    async def state() -> list[Any]:
        info = await world.admin.stream(name)  # without its size, which is counted from time to time
        scheduled = [one.key for one in await world.admin.scheduled_messages(name)]
        return [info.retention, info.messages, [one.name for one in await world.admin.consumers(name)], scheduled]

    return Object((name,), state, {"ids": [first]})


SUBJECTS: dict[str, Callable[[World, str], Coroutine[Any, Any, Object]]] = {
    paths.STREAM: _stream, CONSUMER: _consumer, SOURCE: _source, SCHEDULE: _schedule, DATABASE: _database, TOKEN: _token,
}  # fmt: skip


@pytest.fixture(scope="module")
def of_databases(server_dsn: str, template: str) -> Iterator[World]:
    """A world for operations on further databases. A stream that is not there may be in one that the server can't open."""
    with _world(server_dsn, template) as world:
        yield world


@pytest.fixture(scope="module")
def of_others(server_dsn: str, template: str) -> Iterator[World]:
    with _world(server_dsn, template) as world:
        yield world


@pytest.fixture
def world(name: str, server_dsn: str, request: pytest.FixtureRequest) -> World:
    found: World = request.getfixturevalue(
        "of_databases" if OPERATIONS[name].path.startswith(DATABASE) else "of_others"
    )
    return found


@contextlib.contextmanager
def _loop() -> Iterator[Run]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="world")
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextlib.contextmanager
def _world(server_dsn: str, template: str) -> Iterator[World]:
    with servers.clone(server_dsn, template) as dsn, _loop() as run, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HR_TEST_OTHER", dsn)
        database = store.Database(dsn)
        run(database.open())
        admin = Admin(database)
        for table in ("orders", "items", "carts"):
            run(database.fetch(f"create table {table} (id int primary key, total numeric)"))
            run(database.fetch(f"alter table {table} replica identity full"))
        token = run(admin.create_token("ops", ["admin"])).token
        run(admin.create_stream("orders"))
        keys, data = [f"k.{n}" for n in range(4)], [f'{{"n": {n}}}' for n in range(4)]
        run(admin.send_many("orders", keys, data, [None] * 4))
        with serving(dsn, Options(capture=False, database_references=("env:HR_TEST_OTHER",))) as url:
            remote = Remote(url, token=token)
            run(remote.__aenter__())
            with httpx.Client(base_url=url) as client:
                yield World(run, database, url, token, remote, client)
            run(remote.__aexit__(None, None, None))
        run(database.close())


# --- the doors

Door = Callable[[World, str, Object, dict[str, Any]], Outcome]


def _method(side: Admin | Remote, world: World, name: str, of: Object, body: dict[str, Any]) -> Outcome:
    try:
        result = world.run(getattr(side, name)(*of.refs, **body))
    except HeadraceError as error:
        return Outcome(refused=str(error), exit_code=error.exit_code)
    if isinstance(result, CompletionPage):
        result = result.completions
    return Outcome(counted=len(result) if isinstance(result, list) else result if isinstance(result, int) else None)


def _python(world: World, name: str, of: Object, body: dict[str, Any]) -> Outcome:
    return _method(world.admin, world, name, of, body)


def _remote(world: World, name: str, of: Object, body: dict[str, Any]) -> Outcome:
    return _method(world.remote, world, name, of, body)


def _http(world: World, name: str, of: Object, body: dict[str, Any]) -> Outcome:
    operation, answer = OPERATIONS[name], _ask(world, name, of, body, world.token)
    if answer.status_code >= 400:
        kind = ERROR_CODES[answer.json()["code"]].kind or InvalidInput
        return Outcome(refused=answer.json()["summary"], exit_code=kind.exit_code)
    assert answer.status_code == operation.status
    body = answer.json()
    return _counted(operation, body.get("data", body.get("completions")))


def _counted(operation: Operation, data: Any) -> Outcome:
    if isinstance(operation.answer, Count):
        return Outcome(counted=data[operation.answer.field])
    return Outcome(counted=len(data) if isinstance(data, list) else None)


def _ask(world: World, name: str, of: Object, body: dict[str, Any], token: str) -> httpx.Response:
    path = OPERATIONS[name].path
    names = [part for _, part, _, _ in Formatter().parse(path) if part]
    sent = {field: iso(value) if isinstance(value, datetime) else value for field, value in body.items()}
    method = OPERATIONS[name].method
    return world.client.request(
        method,
        path_of(path, dict(zip(names, of.refs, strict=True))),
        json=None if method == "GET" else sent or None,
        params=sent if method == "GET" else None,
        headers={"authorization": f"Bearer {token}"},
    )


def _command(world: World, name: str, of: Object, body: dict[str, Any]) -> Outcome:
    command = command_of(name)
    assert command is not None
    words = [*command.split(), *of.refs, "--server", world.url, "--token", world.token]
    for field, value in body.items():
        if (name, field) == ("cancel_backfills", "id"):
            words.append(value)
            continue
        several = isinstance(value, list)
        option = OPTIONS.get(field, "--" + field.replace("_", "-").removesuffix("s" if several else ""))
        for one in value if several else [value]:
            words += [option] if one is True else [option, iso(one) if isinstance(one, datetime) else str(one)]
    if "yes" in _parameters(command):
        words.append("--yes")
    if "wait" in _parameters(command):
        words.append("--no-wait")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call([*words, "--json"])
    if code > 1:
        return Outcome(refused=err.getvalue().removeprefix("headrace: ").rstrip("\n"), exit_code=code)
    return _counted(OPERATIONS[name], json.loads(out.getvalue()))


@cache
def _parameters(command: str) -> set[str]:
    first, *rest = command.split()
    found = build(called=first)[first]
    for word in rest:
        found = found[word]
    assert found.default_command is not None
    return set(inspect.signature(found.default_command).parameters)


DOORS: dict[str, Door] = {"Admin": _python, "Remote": _remote, "HTTP": _http, "command": _command}


def _doors(name: str) -> dict[str, Door]:
    return {door: through for door, through in DOORS.items() if door != "command" or command_of(name) is not None}


# --- the property


def _fields(name: str) -> list[str]:
    body = OPERATIONS[name].body
    return [] if body is None else [field.name for field in msgspec.structs.fields(body)]


def _bodies(name: str, of: Object) -> list[dict[str, Any]]:
    values = {**VALUES, **of.values}
    return [{}, *({field: values.get(f"{name}.{field}", values[field])} for field in _fields(name))]


def _told(world: World, name: str, of: Object) -> Any:
    """Return the state of an object and the last entry in the audit log, without names, ids and times."""
    state = world.run(of.state())
    entries = [] if not OPERATIONS[name].changes else world.run(world.admin.audit(limit=1))
    recorded = [(one.action, one.details) for one in entries]
    return json.loads(_nameless(msgspec.json.encode([state, recorded]).decode(), of))


def _without_names(outcome: Outcome, of: Object) -> Outcome:
    return outcome if outcome.refused is None else outcome._replace(refused=_nameless(outcome.refused, of))


def _nameless(text: str, of: Object) -> str:
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r'"(ids?)":("\w{12}"|\d+|\[\d+\])', r'"\1":0', text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    for ref in sorted(set(of.refs) - {"orders"}, key=len):
        text = re.sub(rf"\b{ref}\b", "NAME", text)
    return text


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_has_the_same_effect_through_every_door(world: World, name: str) -> None:
    without: Any = None
    for number in range(1 + len(_fields(name))):
        seen: dict[str, Any] = {}
        for door, through in _doors(name).items():
            of = world.make(OPERATIONS[name])
            body = _bodies(name, of)[number]
            outcome = through(world, name, of, body)
            seen[door] = _without_names(outcome, of), _told(world, name, of)
        for door, found in seen.items():
            assert found == seen["Admin"], (door, body)
        assert seen["Admin"] != without, f"{body} makes no difference"
        without = without or seen["Admin"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_what_is_not_there_is_refused_alike_at_every_door(world: World, name: str) -> None:
    refs = ["orders", "nope"] if OPERATIONS[name].path.startswith(CONSUMER) else ["nope"]
    for door, through in _doors(name).items():
        outcome = through(world, name, Object(tuple(refs), _nothing), {})
        assert "'nope'" in (outcome.refused or ""), door
        assert outcome.exit_code == UnknownConsumer.exit_code, door


async def _nothing() -> list[Any]:
    return []


@pytest.mark.parametrize("name", [name for name in OPERATIONS if set(_fields(name)) & set(INVALID)])
def test_an_invalid_value_is_refused_at_every_door_and_changes_nothing(world: World, name: str) -> None:
    of = world.make(OPERATIONS[name])
    before = world.run(of.state())
    for field in sorted(set(_fields(name)) & set(INVALID)):
        for door, through in _doors(name).items():
            outcome = through(world, name, of, {field: INVALID[field]})
            assert outcome.exit_code in (InvalidInput.exit_code, UsageError.exit_code), (door, field, outcome)
        assert world.run(of.state()) == before


@pytest.mark.parametrize("name", [name for name in OPERATIONS if OPERATIONS[name].method == "POST"])
def test_a_field_that_is_not_in_the_body_is_refused(world: World, name: str) -> None:
    of = world.make(OPERATIONS[name])
    if OPERATIONS[name].body is not None:
        assert _http(world, name, of, {"more": 1}).exit_code == InvalidInput.exit_code
    for side in (world.admin, world.remote):
        with pytest.raises((TypeError, InvalidInput), match="more"):
            world.run(getattr(side, name)(*of.refs, more=1))


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_route_of_an_operation_needs_the_scope_of_the_table(world: World, name: str) -> None:
    scope, streams = scope_of(name)
    for right, of_stream in ((scope, "own"), (scope, "others"), ("consume", "own"), ("publish", ""), (scope, "")):
        of = world.make(OPERATIONS[name])
        own = of.refs[0] if OPERATIONS[name].path.startswith(paths.STREAM) else "orders"
        stream = own if of_stream == "own" else of_stream
        given = f"{right}:{stream}" if stream else right
        token = world.run(world.admin.create_token(f"t-{of.refs[-1]}", [given])).token
        status = _ask(world, name, of, {}, token).status_code
        allowed = right == scope and (not stream or (stream == own and streams is STREAM))
        assert (status != 403) is allowed, (given, status)
