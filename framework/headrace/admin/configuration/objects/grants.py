"""Grants to database roles, in a configuration. Each right is a separate object: a role, a privilege and a stream."""

from __future__ import annotations

from headrace import store
from headrace.admin.configuration.declared import Declared, Desired
from headrace.admin.configuration.objects import streams
from headrace.admin.configuration.steps import Step, creation
from headrace.model.errors import InvalidInput
from headrace.store import Executor, Right


def right_of(names: tuple[str, ...]) -> Right:
    """The right that these names lead to: a role, a privilege, and a stream or "" for all."""
    role, privilege, stream = names
    return Right(role, privilege, stream or None)  # type: ignore[arg-type]


async def step(executor: Executor, desired: Desired, declared: Declared) -> Step | None:
    """The step that gives a right, or None if the role has it.

    Raises:
        InvalidInput: there is no such role or stream, or the role needs no grant.
    """
    right = right_of(desired.object)
    await store.require_role(executor, right.role)
    if right.stream and not declared.has_stream(right.stream) and await streams.present(executor, right.stream) is None:
        raise InvalidInput(f"The stream {right.stream!r} does not exist, and the files don't declare it.")
    if await store.has_right(executor, right):
        return None

    async def give(connection: Executor) -> None:
        await store.change_grants(connection, [right])

    return creation("grant", desired.object, {}, give, "It applies to the next call of the role.")
