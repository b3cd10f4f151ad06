"""Applies a plan: everything that is created or changed in a database in one transaction there, and then each deletion in
its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from headrace import store
from headrace.admin.configuration.declared import Declared
from headrace.admin.configuration.objects import removal
from headrace.admin.configuration.parts import Part, opened
from headrace.admin.configuration.plans import Plan, Work, joined, require_plannable, work
from headrace.admin.configuration.steps import recorded
from headrace.model.errors import HeadraceError, InUse, StoreUnavailable
from headrace.model.tokens import NewToken
from headrace.model.watching.audit import Actor
from headrace.store import Database, Executor, Managed, PlaceKind
from headrace.store.database.errors import translated


class PlanChanged(InUse):
    """The database changed since the plan was made. Nothing was done."""


class PartlyApplied(HeadraceError):
    """Some databases committed their changes, and another one did not."""

    def __init__(self, cause: HeadraceError, done: Sequence[Part], others: Sequence[Part]) -> None:
        super().__init__(
            f"{cause} The declarations were applied in {_words(done)}, and perhaps not in {_words(others)}. Apply again to"
            " continue with the rest."
        )
        self.exit_code = cause.exit_code


def _words(parts: Sequence[Part]) -> str:
    return ", ".join(map(str, parts))


class DeletionRefused(InUse):
    """A deletion would lose messages or a position, and `allow_delete` is not given."""


async def apply(
    database: Database,
    declared: Declared,
    *,
    expected: Plan | None = None,
    prune: bool = False,
    allow_delete: bool = False,
    save_tokens: Callable[[Sequence[NewToken]], None] = lambda _: None,
    committed: Callable[[Sequence[NewToken]], None] = lambda _: None,
    actor: Actor = Actor(),  # noqa: B008 - frozen
) -> tuple[Plan, list[NewToken]]:
    """Make the database as files declare it. Objects and settings that they don't mention stay as they are.

    Everything that is created or changed in a database is done in one transaction there. Nothing is committed before all of
    it was done. Then the configuration database commits first, and the further ones follow by name. With `prune`, deletions
    follow one by one. If the process stops between them, the next call continues.

    Args:
        database: the configuration database, with two connections at least: one holds the lock. Further ones are opened.
        expected: the plan that was confirmed. Nothing is done if there would be other changes now.
        prune: delete what the configuration manages and the files no longer mention.
        allow_delete: also delete streams with messages, and consumers and captures with a position.
        save_tokens: keeps the secrets of new tokens. It is called before the transaction commits, so that none is lost.
        actor: in whose name the changes are recorded in the audit log.
        committed: is called with the new tokens after their transaction, before anything else, which may fail.

    Returns:
        The applied changes, and the new tokens.

    Raises:
        InUse: another apply is running, or workers use what is to be deleted.
        PartlyApplied: some databases committed, and another one failed then.
        PlanChanged, DeletionRefused.

    Also raises what `plan` raises.
    """
    require_plannable(database, declared, prune=prune)
    async with opened(database, declared) as parts, _locked(parts.parts) as still_locked:
        tokens: list[NewToken] = []
        async with _transactions(parts.parts, lambda: committed(tokens)) as connections:
            works = [
                await work(connection, part, parts, declared, prune=prune)
                for part, connection in zip(parts.parts, connections, strict=True)
            ]
            todo = joined(works, parts.away)
            if expected is not None and not todo.resembles(expected):
                raise _changed()
            require_allowed(todo, allow_delete=allow_delete)
            for one, connection in zip(works, connections, strict=True):
                await _place(connections[0], one)
                for step in one.steps:
                    token = await step.perform(connection)
                    tokens += [] if token is None else [token]
                    await store.record_change(connection, actor, recorded(step.change))
                if declared.name is not None:
                    await _record(connection, declared.name, one)
            if tokens:
                save_tokens(tokens)
        for one in works:
            await _confirm(database, one)
        for one in works:
            for gone in one.deletions:
                await still_locked()
                await _delete(database, one.part, declared.name or "", gone, allow_delete=allow_delete, actor=actor)
    return todo, tokens


def _changed() -> PlanChanged:
    return PlanChanged(
        "The database changed since the plan was made, so the plan is outdated. Nothing was done. Try again."
    )


@asynccontextmanager
async def _locked(parts: Sequence[Part]) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Lock the changes of configurations in all databases until the end of the block, also between its transactions.

    The locks are those of transactions that do nothing else, so that they hold behind a pooler, too. Yields a call that
    raises `StoreUnavailable` if one of them has ended.
    """
    async with AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(_lock(part.database)) for part in parts]

        async def still_locked() -> None:
            for part, connection in zip(parts, connections, strict=True):
                with translated(part.database.dsn):
                    await connection.fetchval("select 1")

        yield still_locked


@asynccontextmanager
async def _lock(database: Database) -> AsyncIterator[Any]:
    """Lock the changes of configurations in one database. Yields the connection that holds the lock."""
    transaction = database.transaction()
    connection = await transaction.__aenter__()
    try:
        await store.lock_configurations(connection)
        yield connection
    finally:
        with suppress(StoreUnavailable):  # then the lock has ended, too, and what happened in the block counts
            await transaction.__aexit__(None, None, None)


@asynccontextmanager
async def _transactions(parts: Sequence[Part], committed: Callable[[], None]) -> AsyncIterator[list[Any]]:
    """Open a transaction in each database. They commit in order, and none does after an error.

    Args:
        committed: is called after the first one has committed.

    Raises:
        PartlyApplied: a transaction failed to commit after others did.
    """
    done: list[Part] = []

    def note(part: Part, error: BaseException | None) -> None:
        if error is None:
            done.append(part)
            if len(done) == 1:
                committed()

    try:
        async with AsyncExitStack() as stack:
            connections = []
            for part in reversed(parts):  # the last one commits first
                stack.push(lambda _, error, __, part=part: note(part, error))
                connections.append(await stack.enter_async_context(part.database.transaction()))
            yield connections[::-1]
    except HeadraceError as error:
        if not done:
            raise
        raise PartlyApplied(error, done, parts[len(done) :]) from error


async def _place(home: Executor, todo: Work) -> None:
    """Place the names of new streams and sources in their database, before they are created there."""
    for kind, name in _created(todo):
        if await store.place_name(home, kind, name, todo.part.name or "") != todo.part.name:
            raise _changed()


async def _confirm(home: Database, todo: Work) -> None:
    """Note the ids of what was created under placed names, so that servers find it by its id immediately."""
    for kind, name in _created(todo):
        identity = await removal.identity(todo.part.database, kind, (name,))
        if identity is not None:
            await store.confirm_place(home, kind, name, todo.part.name or "", identity)


def _created(todo: Work) -> list[tuple[PlaceKind, str]]:
    """The kinds and names of what is created in a further database, as far as names are unique among all."""
    if todo.part.name is None:
        return []
    changes = [step.change for step in todo.steps if step.change.action == "create"]
    return [(one.kind, one.object[0]) for one in changes if one.kind in ("stream", "source")]


def require_allowed(plan: Plan, *, allow_delete: bool, done: str = "Nothing was done.") -> None:
    """Raise `DeletionRefused` if a deletion would lose messages or a position, and `allow_delete` is not given. Its message
    says what was `done`.
    """
    if plan.guarded and not allow_delete:
        first, *others = plan.guarded
        more = f" There are {len(others)} more like it." if others else ""
        raise DeletionRefused(
            f"The {first.kind} {'/'.join(first.object)!r} is not deleted. {first.guarded}{more} {done} To delete it, give"
            " --allow-delete. To keep it, leave out --prune, or mention it in the file."
        )


async def _record(connection: Executor, name: str, todo: Work) -> None:
    """Record what the configuration manages, as far as it isn't recorded."""
    recorded = set(await store.managed(connection, name))
    managed = []
    for one in todo.part.declared.objects.values():
        identity = await removal.identity(connection, one.kind, one.object)
        if identity is not None:
            managed.append(Managed(one.kind, one.object, identity))
    await store.manage(connection, name, [one for one in managed if one not in recorded])
    for gone in todo.gone:
        await store.unmanage(connection, name, gone)


async def _delete(home: Database, part: Part, name: str, one: Managed, *, allow_delete: bool, actor: Actor) -> None:
    """Delete an object, unless it changed meanwhile into one that must not be deleted."""
    database = part.database
    async with database.transaction() as connection:
        if await removal.identity(connection, one.kind, one.object) == one.identity:
            change = await removal.deletion(connection, one)
            require_allowed(Plan((change,)), allow_delete=allow_delete, done="The declarations were applied.")
            exists = True
        else:
            exists = False
    if exists:
        await removal.delete(database, one, actor)
        if part.name is not None and one.kind in ("stream", "source"):
            await store.forget_place(home, one.kind, one.object[0], part.name)
    async with database.transaction() as connection:
        await store.unmanage(connection, name, one)
