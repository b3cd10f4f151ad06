"""Invalid dependencies are refused at the start or where they are declared. Providers of dishka are accepted."""

from __future__ import annotations

import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any

import fastapi
import pytest
from dishka import FromComponent, FromDishka, Provider, Scope, provide

from headrace import App, Batch, ConfigurationError, Depends, Message
from headrace.runtime.messages.transaction import Transaction
from tests.app.providing import Clock, Greeter, Noon, Pool, Session
from tests.runtime.running import running, work_off


@pytest.fixture
def app(dsn: str) -> App:
    return App(dsn)


@pytest.fixture
def steps() -> list[Any]:
    """The recorded events, in order."""
    return []


# --- invalid dependencies


async def refused(app: App) -> str:
    with pytest.raises(ConfigurationError) as caught:
        await app.preflight()
    return str(caught.value)


@pytest.mark.asyncio
async def test_a_missing_dependency_is_an_error_at_the_start(app: App) -> None:
    @app.consumer("orders")
    async def ship(number: int, pool: Depends[Pool]) -> None: ...

    assert await refused(app) == (
        "The handler 'ship' takes Pool ('pool'), and nothing provides Pool: write a function that returns it, with @app.provide."
    )
    with pytest.raises(ConfigurationError, match="nothing provides Pool"):
        async with running(app):
            pass


@pytest.mark.asyncio
async def test_a_missing_indirect_dependency_and_a_cycle_are_errors_at_the_start(app: App) -> None:
    app.provide(Greeter)

    @app.provide
    def session(pool: Pool) -> Session:
        return Session(pool)

    @app.consumer("orders")
    async def ship(it: Depends[Greeter]) -> None: ...

    assert (
        await refused(app)
        == "The handler 'ship' takes Greeter ('it'), which needs Clock, and nothing provides Clock: write a"
        " function that returns it, with @app.provide."
    )

    @app.provide
    def clock(session: Session) -> Clock:
        return Noon()

    @app.provide
    def pool(clock: Clock) -> Pool:
        return Pool()

    assert await refused(app) == (
        "The handler 'ship' takes Greeter ('it'), which needs Clock, which needs Session, which needs Pool, which needs Clock, and so on"
        " in a circle: let one of them do without the next."
    )


@pytest.mark.asyncio
async def test_a_dependency_of_the_app_may_not_need_one_of_a_delivery(app: App) -> None:
    @app.provide
    def pool() -> Pool:
        return Pool()

    @app.provide(scope="app")
    def session(pool: Pool) -> Session:
        return Session(pool)

    @app.consumer("orders")
    async def ship(it: Depends[Session]) -> None: ...

    assert await refused(app) == (
        "The handler 'ship' takes Session ('it'), which needs Pool, and Session lives as long as the app, Pool as long as a message:"
        " don't give Session scope='app'."
    )


@pytest.mark.asyncio
async def test_a_handler_can_not_need_a_dependency_that_its_kind_does_not_have(dsn: str) -> None:
    def of_message(message: Message) -> Session:
        return Session(Pool(), message.seq)

    def of_batch(batch: Batch) -> Session:
        return Session(Pool(), len(batch))

    def of_transaction(tx: Transaction) -> Session:
        return Session(Pool())

    for provider, settings, said in (
        (of_message, {"batch": 2}, "which needs Message, and handles batches. Take a Batch"),
        (of_batch, {}, "which needs Batch, and handles single messages. Take a Message"),
        (of_transaction, {}, "which needs Transaction, and runs in no transaction. Set transactional=True"),
    ):
        app = App(dsn)
        app.provide(provider)

        @app.consumer("orders", **settings)  # type: ignore[arg-type]
        async def ship(session: Depends[Session]) -> None: ...

        assert f"The handler 'ship' takes Session ('session'), {said}" in await refused(app)


def declared_wrong(source: Any, **settings: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        App("postgresql://nowhere").provide(source, **settings)
    return str(caught.value)


def test_an_invalid_provider_is_refused_where_it_is_declared() -> None:
    def silent():  # type: ignore[no-untyped-def]
        ...

    def untyped(pool) -> Session:  # type: ignore[no-untyped-def]
        ...

    def nothing() -> None: ...

    class Abstract(ABC):
        @abstractmethod
        def now(self) -> int: ...

    def not_an_iterator() -> Session:  # type: ignore[misc]
        yield Session(Pool())

    assert declared_wrong(silent) == (
        "The provider 'silent' can't be used: annotate it with the type that it returns, which is what it provides."
    )
    assert (
        declared_wrong(untyped) == "The provider 'untyped' can't be used: annotate pool with the types that it needs."
    )
    assert "The provider 'nothing' provides None" in declared_wrong(nothing)
    assert "Did you mean Iterable[" in declared_wrong(not_an_iterator)
    assert "scope='request' must be 'message'" in declared_wrong(Pool, scope="request")
    assert "takes a function, a class, or an object of dishka's Provider, not 7" in declared_wrong(7)
    assert "not <class" in declared_wrong(Provider)
    assert "can't use a functools.partial ('Session'). Write a function" in declared_wrong(partial(Session, Pool()))
    assert "can't use an abstract class ('Abstract')" in declared_wrong(Abstract)


def a_pool() -> Pool:
    return Pool()


def test_the_form_of_fastapi_is_refused_with_ours(app: App) -> None:
    with pytest.raises(ConfigurationError, match=r"`db: Depends\[Db\]`, and `@app.provide` on a_pool"):

        @app.consumer("orders")
        async def ship(number: int, pool: Annotated[Pool, Depends(a_pool)]) -> None: ...  # type: ignore[operator]

    with pytest.raises(ConfigurationError, match=r"`@app.provide` on the function"):

        @app.consumer("orders")
        async def pack(number: int, pool: Annotated[Pool, fastapi.Depends(a_pool)]) -> None: ...


def test_depends_must_say_on_what() -> None:
    async def ship(pool: Depends) -> None: ...  # type: ignore[type-arg]

    with pytest.raises(ConfigurationError, match=r"Depends needs a type. Write Depends\[Pool\]"):
        App("postgresql://nowhere").consumer("orders")(ship)


@pytest.mark.asyncio
async def test_a_type_is_provided_once_or_expressly_by_another(app: App) -> None:
    first, second = Pool(), Pool()
    seen: list[Pool] = []

    @app.provide(scope="app")
    def one() -> Pool:
        return first

    def two() -> Pool:
        return second

    with pytest.raises(ConfigurationError, match=r"Pool has two providers, 'one' and 'two'\. Remove one of them"):
        app.provide(two)
    app.provide(two, override=True)

    @app.consumer("orders")
    async def ship(pool: Depends[Pool]) -> None:
        seen.append(pool)

    await work_off(app, ("a", 1))
    assert seen == [second]


@pytest.mark.asyncio
async def test_a_built_in_dependency_can_not_be_provided(app: App) -> None:
    app.provide(Pool)

    @app.lifespan
    async def pool(app: App) -> AsyncIterator[Pool]:
        yield Pool()

    @app.consumer("orders")
    async def ship(pool: Depends[Pool]) -> None: ...

    assert await refused(app) == (
        "Pool is provided by 'Pool', and exists without it, from @app.lifespan or as the app. Remove the provider, or pass override=True."
    )
    with pytest.raises(ConfigurationError, match="Message has two providers, Headrace itself"):
        app.provide(lambda: None, provides=Message)


@pytest.mark.asyncio
async def test_a_dependency_may_be_replaced_on_purpose(app: App) -> None:
    replacement = Pool()
    seen: list[Pool] = []

    @app.lifespan
    async def pool(app: App) -> AsyncIterator[Pool]:
        yield Pool()

    @app.consumer("orders")
    async def ship(pool: Depends[Pool]) -> None:
        seen.append(pool)

    @app.provide(scope="app", override=True)
    def fake() -> Pool:
        return replacement

    await work_off(app, ("a", 1))
    assert seen == [replacement]


# --- dishka


@pytest.mark.asyncio
async def test_a_provider_of_dishka_is_accepted_and_so_is_its_marker(app: App) -> None:
    seen: list[Any] = []

    class Ours(Provider):
        @provide(scope=Scope.APP)
        def pool(self) -> Pool:
            return Pool()

        @provide(scope=Scope.REQUEST)
        async def session(self, pool: Pool, message: Message) -> Session:
            return Session(pool, message.seq)

    class Other(Provider):
        component = "other"
        pool = provide(Pool, scope=Scope.APP)

    app.provide(Ours())
    app.provide(Other())

    @app.consumer("orders")
    async def ship(
        number: int, session: FromDishka[Session], pool: Depends[Pool], other: Annotated[Pool, FromComponent("other")]
    ) -> None:
        seen.append((number, session.seq, session.pool is pool, isinstance(other, Pool), other is pool))

    await work_off(app, ("a", 1))
    assert seen == [(1, 1, True, True, False)]


@pytest.mark.asyncio
async def test_a_dishka_dependency_that_is_not_cached_is_made_each_time(app: App) -> None:
    seen: list[Pool] = []
    provider = Provider(scope=Scope.APP)
    provider.provide(Pool, cache=False)
    app.provide(provider)

    @app.consumer("orders")
    async def ship(one: Depends[Pool], two: Depends[Pool]) -> None:
        seen.extend((one, two))

    await work_off(app, ("a", 1), ("a", 2))
    assert len({id(pool) for pool in seen}) == 4


@pytest.mark.process
def test_an_app_without_dependencies_does_not_load_the_library() -> None:
    code = """
import sys
from headrace import App, Depends, Message
app = App("postgresql://nowhere")
@app.consumer("orders")
async def ship(number: int, message: Message) -> None: ...
sys.exit(any(name.split(".")[0] == "dishka" for name in sys.modules))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
