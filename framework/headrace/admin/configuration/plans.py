"""Plans: what has to change in databases so that they are as files declare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace import store
from headrace.admin.configuration.declared import Declared, Desired
from headrace.admin.configuration.documents import Problems
from headrace.admin.configuration.objects import consumers, databases, grants, removal, sources, streams, tokens
from headrace.admin.configuration.parts import Part, Parts, opened
from headrace.admin.configuration.steps import Change, Step
from headrace.model.errors import ConfigurationError, InvalidInput
from headrace.store import Database, Executor, Kind, Managed

ORDER: tuple[Kind, ...] = ("stream", "source", "consumer", "token", "grant")
"""The order in which objects are created and changed."""


class Left(msgspec.Struct, frozen=True):
    """An object that the configuration manages and the files no longer mention.

    Attributes:
        object: the names that lead to it.
        database: the further database that has it. None for the configuration database.
    """

    kind: Kind
    object: tuple[str, ...]
    database: str | None = None


class Plan(msgspec.Struct, frozen=True):
    """The changes that an apply would make.

    Attributes:
        changes: what is created and changed, and then what is deleted, in the order in which it is done.
        left: objects that the configuration manages and the files no longer mention, which stay without `prune`.
        away: further databases that the files don't mention and that can't be opened, with the reasons. Objects there that
            the configuration manages stay.
    """

    changes: tuple[Change, ...]
    left: tuple[Left, ...] = ()
    away: Mapping[str, str] = {}

    @property
    def destructive(self) -> bool:
        """Whether data or access are lost."""
        return any(change.destructive for change in self.changes)

    def resembles(self, other: Plan) -> bool:
        """Whether another plan does the same. How much would be lost may differ."""
        return self._essence() == other._essence()

    def _essence(self) -> list[object]:
        return [(one.database, one.action, one.kind, one.object, one.fields) for one in self.changes]

    @property
    def guarded(self) -> list[Change]:
        """The changes that need `allow_delete`."""
        return [change for change in self.changes if change.guarded]


@dataclass(frozen=True)
class Work:
    """The changes to make in one database.

    Attributes:
        left: objects that are recorded and no longer mentioned, and stay.
        steps: what is created and changed, in one transaction.
        deletions: the deletions, each in a separate transaction.
        gone: recorded objects that no longer exist, and with `prune` those that another configuration manages, too.
    """

    part: Part
    steps: Sequence[Step]
    deletions: Sequence[Managed]
    gone: Sequence[Managed]
    left: Sequence[Managed]
    losses: Sequence[Change]

    @property
    def plan(self) -> Plan:
        """The changes, as a plan."""
        name = self.part.name
        changes = [step.change for step in self.steps] + list(self.losses)
        return Plan(
            tuple(msgspec.structs.replace(one, database=name) for one in changes),
            tuple(Left(one.kind, one.object, name) for one in self.left),
        )


def joined(works: Sequence[Work], away: Mapping[str, str]) -> Plan:
    """The plan of all databases: everything that is created and changed, and then what is deleted."""
    plans = [one.plan for one in works]
    changes = [change for one in plans for change in one.changes]
    changes.sort(key=lambda change: change.action == "delete")
    return Plan(tuple(changes), tuple(left for one in plans for left in one.left), away)


async def plan(database: Database, declared: Declared, *, prune: bool = False) -> Plan:
    """Compare what is declared with what exists, and change nothing.

    Args:
        database: the configuration database. Further ones are opened.
        prune: also delete what the configuration manages and the files no longer mention.

    Raises:
        ConfigurationError: a setting is invalid or can't be changed, or `prune` is given and the configuration has
            no name. Several are in an `ExceptionGroup`.
        NotGranted: a database's role is not a member of the schema's owner.
        StoreUnavailable: a database that the files mention can't be reached.
    """
    require_plannable(database, declared, prune=prune)
    async with opened(database, declared) as parts:
        works = []
        for part in parts.parts:
            async with part.database.transaction() as connection:
                works.append(await work(connection, part, parts, declared, prune=prune))
        return joined(works, parts.away)


def require_plannable(database: Database, declared: Declared, *, prune: bool) -> None:
    """Raise `NotGranted` or `ConfigurationError` if no plan can be made."""
    store.require_membership(database, "compare and apply configurations")
    if prune and declared.name is None:
        raise ConfigurationError(
            "Only a configuration with a name knows what it manages. To prune, give it one at the top of a file, such as `name: shop`."
        )


async def work(executor: Executor, part: Part, parts: Parts, whole: Declared, *, prune: bool) -> Work:
    """The changes to make in one database, in a transaction. `whole` is what is declared for all."""
    declared = part.declared
    problems = Problems()
    steps = [] if part.name is not None else databases.steps(whole.databases, parts.urls)
    for kind in ORDER:
        for desired in declared.of(kind):
            try:
                step = await _step(executor, desired, part)
            except (ConfigurationError, InvalidInput) as error:
                problems.add(desired.place(error.field), error)
            else:
                steps += [] if step is None else [step]
    problems.raise_any()
    left, gone = await _left(executor, declared)
    deletions = await _deletable(executor, declared, left) if prune else []
    gone += [one for one in left if prune and one not in deletions]
    losses = [await removal.deletion(executor, one) for one in deletions]
    return Work(part, steps, deletions, gone, () if prune else left, losses)


async def _step(executor: Executor, desired: Desired, part: Part) -> Step | None:
    if desired.kind == "stream":
        return await streams.step(executor, desired)
    if desired.kind == "consumer":
        return await consumers.step(executor, desired)
    if desired.kind == "source":
        return await sources.step(executor, desired, part.declared, part.database.dsn)
    if desired.kind == "token":
        return await tokens.step(executor, desired)
    return await grants.step(executor, desired, part.declared)


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
