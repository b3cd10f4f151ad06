"""configurations: which objects a named configuration manages, and the lock of `headrace apply`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.model.errors import InUse
from headrace.model.text.sql import without_timeouts
from headrace.store.database.database import Executor

Kind = Literal["stream", "consumer", "source", "token", "grant"]

_LOCK = 0x68656164_6D616E61
"""The key of the advisory lock."""


class Managed(msgspec.Struct, frozen=True):
    """An object that a configuration has applied.

    Attributes:
        object: the names that lead to it, such as those of a stream and of its consumer.
        identity: the id of the object that was applied. A later object of the same name has another one.
    """

    kind: Kind
    object: tuple[str, ...]
    identity: str


async def lock_configurations(executor: Executor) -> None:
    """Lock the changes of configurations until the end of the transaction, which may be idle until then.

    Raises:
        InUse: another process has the lock.
    """
    if not await executor.fetchval("select pg_try_advisory_xact_lock($1)", _LOCK):
        raise InUse(
            "Another `headrace apply` is changing this database. Nothing was changed. Try again when it has ended."
        )
    await executor.fetchval(without_timeouts("idle_in_transaction_session_timeout", "transaction_timeout"))


async def managed(executor: Executor, configuration: str) -> list[Managed]:
    """The objects that a configuration manages, by kind and name."""
    rows = await executor.fetch(
        """select kind, object, identity from headrace_internal.managed where configuration = $1
           order by kind, object""",
        configuration,
    )
    return [Managed(row["kind"], tuple(row["object"]), row["identity"]) for row in rows]


async def manage(executor: Executor, configuration: str, objects: Sequence[Managed]) -> None:
    """Record that a configuration manages these objects."""
    for one in objects:
        arguments = (configuration, one.kind, list(one.object), one.identity)
        await executor.fetchval(
            """insert into headrace_internal.managed (configuration, kind, object, identity) values ($1, $2, $3, $4)
               on conflict (configuration, kind, object) do update
               set identity = excluded.identity, applied_at = excluded.applied_at""",
            *arguments,
        )


async def unmanage(executor: Executor, configuration: str, one: Managed) -> None:
    """Record that a configuration no longer manages an object."""
    arguments = (configuration, one.kind, list(one.object))
    await executor.fetchval(
        "delete from headrace_internal.managed where configuration = $1 and kind = $2 and object = $3", *arguments
    )


async def managed_elsewhere(executor: Executor, configuration: str, one: Managed) -> list[str]:
    """The other configurations that manage the same object, by name."""
    arguments = (configuration, one.kind, list(one.object), one.identity)
    rows = await executor.fetch(
        """select configuration from headrace_internal.managed
           where configuration <> $1 and kind = $2 and object = $3 and identity = $4 order by configuration""",
        *arguments,
    )
    return [row["configuration"] for row in rows]
