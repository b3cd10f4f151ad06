"""Applies a plan: everything that is created or changed in one transaction, and then each deletion in its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headrace import store
from headrace.admin.configuration.declared import Declared
from headrace.admin.configuration.objects import removal
from headrace.admin.configuration.plans import Plan, Work, work
from headrace.model.errors import InUse
from headrace.model.tokens import NewToken
from headrace.store import Database, Executor, Managed


class PlanChanged(InUse):
    """The database changed since the plan was made. Nothing was done."""


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
) -> tuple[Plan, list[NewToken]]:
    """Make the database as files declare it. What they don't mention stays as it is.

    Everything that is created or changed is done in one transaction. With `prune`, deletions follow one by one. If the process
    stops between them, the next call continues.

    Args:
        expected: the plan that was confirmed. Nothing is done if there would be other changes now.
        prune: delete what the configuration manages and the files no longer mention.
        allow_delete: also delete streams with messages, and consumers and captures with a position.
        save_tokens: keeps the secrets of new tokens. It is called before the transaction commits, so that none is lost.
        committed: is called with the new tokens after the transaction, before the deletions, which may fail.

    Returns:
        What was done, and the new tokens.

    Raises:
        InUse: another apply is running, or workers use what is to be deleted.
        PlanChanged, DeletionRefused.

    Also raises what `plan` raises.
    """
    store.require_membership(database, "apply configurations")
    async with database.transaction() as connection:
        await store.lock_configurations(connection)
        todo = await work(connection, declared, prune=prune)
        if expected is not None and not todo.plan.resembles(expected):
            raise PlanChanged(
                "The database changed since the plan was made, so the plan would be another one now. Nothing was done. Try again."
            )
        require_allowed(todo.plan, allow_delete=allow_delete)
        tokens = [token for step in todo.steps if (token := await step.perform(connection)) is not None]
        if declared.name is not None:
            await _record(connection, declared.name, declared, todo)
        if tokens:
            save_tokens(tokens)
    committed(tokens)
    for one in todo.deletions:
        await _delete(database, declared.name or "", one, allow_delete=allow_delete)
    return todo.plan, tokens


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


async def _record(connection: Executor, name: str, declared: Declared, todo: Work) -> None:
    """Record what the configuration manages, as far as it isn't recorded."""
    recorded = set(await store.managed(connection, name))
    managed = []
    for one in declared.objects.values():
        identity = await removal.identity(connection, one.kind, one.object)
        if identity is not None:
            managed.append(Managed(one.kind, one.object, identity))
    await store.manage(connection, name, [one for one in managed if one not in recorded])
    for gone in todo.gone:
        await store.unmanage(connection, name, gone)


async def _delete(database: Database, name: str, one: Managed, *, allow_delete: bool) -> None:
    """Delete an object, unless it changed meanwhile into one that must not be deleted."""
    async with database.transaction() as connection:
        if await removal.identity(connection, one.kind, one.object) == one.identity:
            change = await removal.deletion(connection, one)
            require_allowed(Plan((change,)), allow_delete=allow_delete, done="What the files declare was applied.")
            exists = True
        else:
            exists = False
    if exists:
        await removal.delete(database, one)
    async with database.transaction() as connection:
        await store.unmanage(connection, name, one)
