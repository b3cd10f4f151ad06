"""Plans: what has to change in a database so that it is as files declare it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace import store
from headrace.admin.configuration.declared import Declared, Desired
from headrace.admin.configuration.documents import Problems
from headrace.admin.configuration.objects import consumers, grants, removal, sources, streams, tokens
from headrace.admin.configuration.steps import Change, Step
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.store import Database, Executor, Kind, Managed

ORDER: tuple[Kind, ...] = ("stream", "source", "consumer", "token", "grant")
"""The order in which objects are created and changed."""


class Plan(msgspec.Struct, frozen=True):
    """What an apply would do.

    Attributes:
        changes: what is created and changed, and then what is deleted, in the order in which it is done.
        left: objects that the configuration manages and the files no longer mention, which stay without `prune`.
    """

    changes: tuple[Change, ...]
    left: tuple[Managed, ...] = ()

    @property
    def destructive(self) -> bool:
        """Whether data or access are lost."""
        return any(change.destructive for change in self.changes)

    def resembles(self, other: Plan) -> bool:
        """Whether another plan does the same. How much would be lost may differ."""
        return self._essence() == other._essence()

    def _essence(self) -> list[object]:
        return [(change.action, change.kind, change.object, change.fields) for change in self.changes]

    @property
    def guarded(self) -> list[Change]:
        """The changes that need `allow_delete`."""
        return [change for change in self.changes if change.guarded]


@dataclass(frozen=True)
class Work:
    """A plan with what performs it.

    Attributes:
        steps: what is created and changed, in one transaction.
        deletions: what is deleted, each in a transaction of its own.
        gone: recorded objects that no longer exist, and with `prune` those that another configuration manages, too.
    """

    plan: Plan
    steps: Sequence[Step]
    deletions: Sequence[Managed]
    gone: Sequence[Managed]


async def plan(database: Database, declared: Declared, *, prune: bool = False) -> Plan:
    """Compare what is declared with what exists, and change nothing.

    Args:
        prune: also delete what the configuration manages and the files no longer mention.

    Raises:
        ConfigurationError: a setting is invalid or can't be changed, or `prune` is given and the configuration has
            no name. Several are in an `ExceptionGroup`.
        NotGranted: the database's role is not a member of the schema's owner.
    """
    store.require_membership(database, "compare configurations")
    async with database.transaction() as connection:
        return (await work(connection, declared, prune=prune)).plan


async def work(executor: Executor, declared: Declared, *, prune: bool) -> Work:
    """As `plan`, in a transaction."""
    if prune and declared.name is None:
        raise ConfigurationError(
            "Only a configuration with a name knows what it manages. To prune, give it one at the top of a file, such as `name: shop`."
        )
    problems = Problems()
    steps = []
    for kind in ORDER:
        for desired in declared.of(kind):
            try:
                step = await _step(executor, desired, declared)
            except (ConfigurationError, InvalidInput) as error:
                problems.add(desired.place(error.field), error)
            else:
                steps += [] if step is None else [step]
    problems.raise_any()
    left, gone = await _left(executor, declared)
    deletions = await _deletable(executor, declared, left) if prune else []
    gone += [one for one in left if prune and one not in deletions]
    changes = [step.change for step in steps] + [await removal.deletion(executor, one) for one in deletions]
    return Work(Plan(tuple(changes), () if prune else tuple(left)), steps, deletions, gone)


async def _step(executor: Executor, desired: Desired, declared: Declared) -> Step | None:
    if desired.kind == "stream":
        return await streams.step(executor, desired)
    if desired.kind == "consumer":
        return await consumers.step(executor, desired)
    if desired.kind == "source":
        return await sources.step(executor, desired, declared)
    if desired.kind == "token":
        return await tokens.step(executor, desired)
    return await grants.step(executor, desired, declared)


async def _left(executor: Executor, declared: Declared) -> tuple[list[Managed], list[Managed]]:
    """The objects that are recorded and not declared, in the order of deletions: those that exist, and those that don't."""
    if declared.name is None:
        return [], []
    recorded = [
        one for one in await store.managed(executor, declared.name) if (one.kind, one.object) not in declared.objects
    ]
    recorded.sort(key=lambda one: removal.ORDER.index(one.kind))
    present = [one for one in recorded if await removal.identity(executor, one.kind, one.object) == one.identity]
    return present, [one for one in recorded if one not in present]


async def _deletable(executor: Executor, declared: Declared, left: Sequence[Managed]) -> list[Managed]:
    """Those that no other configuration manages."""
    name = declared.name or ""
    return [one for one in left if not await store.managed_elsewhere(executor, name, one)]
