"""Dependencies: what a handler takes besides its message.

    async def ship(order: Order, session: Depends[Session], warehouse: Depends[Warehouse]) -> None: ...

Those of scope "app" are made once, before the consumers start, and torn down when they have drained. Those of scope "message" are made
for each delivery, a message or a batch, and torn down when its handler has ended; a handler that takes none of these pays nothing for it.

What provides them, and how one needs another, is found with dishka (https://dishka.readthedocs.io); see `headrace.runtime.handlers.providers`,
which is imported only where something is provided or taken.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_origin

import anyio
import msgspec

from headrace.model.errors import ConfigurationError
from headrace.model.outcomes import Reject, Retry
from headrace.runtime.transaction import Transaction
from headrace.runtime.wiring import Call

if TYPE_CHECKING:
    from dishka import AsyncContainer

logger = logging.getLogger("headrace")

GRACE = 5.0
"""Seconds that the teardown of what failed, or was cancelled, may take."""

T = TypeVar("T")

Scope = Literal["app", "message"]
"""How long something lives: from the start of the app to the end of its drain; or for one delivery."""


class _Mark:
    """Marks an annotation as that of a dependency."""

    def __repr__(self) -> str:
        return "Depends"


MARK = _Mark()
_DISHKA = "dishka.entities.key"  # where its marks are from, by name: looking for them must not import it

Depends = Annotated[T, MARK]
"""`Depends[Pool]` in a handler's signature: hand me the Pool. To a type checker the parameter is a Pool."""


def dependency_of(annotation: Any) -> Any | None:
    """What is asked for, if the annotation marks a dependency: by our `Depends`, or by dishka's `FromDishka`.

    Raises:
        ConfigurationError: it doesn't say what it depends on.
    """
    if get_origin(annotation) is not Annotated:
        return None
    if MARK in annotation.__metadata__:
        if isinstance(annotation.__origin__, TypeVar):
            raise ConfigurationError("Depends must say what is taken: write Depends[Pool].")
        return annotation.__origin__
    if any(type(mark).__module__ == _DISHKA for mark in annotation.__metadata__):
        return annotation  # it may name a component of dishka's
    return None


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody takes a dependency.

    Args:
        who: who that is, such as "The handler 'ship'".
        parameter: the name of the parameter.
        hint: the type that is taken.
        scope: how long the taker lives: "app" or "message".
        absent: types that are not there for it, each with what would bring it.
    """

    who: str
    parameter: str
    hint: Any
    scope: Scope
    absent: Mapping[Any, str] = {}


class Dependencies:
    """What may be taken, for the time of one run.

    Args:
        container: dishka's, of what lives as long as the app; None when nobody takes anything.
        kept: what is in it already, by its type.
    """

    def __init__(self, container: AsyncContainer | None = None, kept: Mapping[Any, Any] | None = None) -> None:
        self._container = container
        self._kept = kept or {}

    def resolve(self, call: Callable[..., Any], wanted: Mapping[str, Any]) -> Call:
        """The call with its dependencies, by the parameter's name: those of the app as they are, those of a delivery made for it."""
        kept = {name: self._kept[hint] for name, hint in wanted.items() if hint in self._kept}
        if kept:
            call = functools.partial(call, **kept)
        fresh = {name: hint for name, hint in wanted.items() if hint not in self._kept}
        return _fresh(self._open(), call, fresh) if fresh else call

    async def take(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """What lives as long as the app, by the parameter's name."""
        return {
            name: self._kept[hint] if hint in self._kept else await self._open().get(*asked(hint))
            for name, hint in wanted.items()
        }

    def _open(self) -> AsyncContainer:
        assert self._container is not None
        return self._container


def _fresh(enter: AsyncContainer, call: Callable[..., Any], wanted: Mapping[str, Any]) -> Call:
    """The call in a scope of its own, which ends with it."""
    parts = [(name, *asked(hint)) for name, hint in wanted.items()]

    async def scoped(payload: Any, delivery: Any) -> Any:
        scope = enter({type(delivery): delivery, Transaction: delivery.transaction})
        try:
            given = {name: await scope.get(kind, component) for name, kind, component in parts}
            result = await call(payload, delivery, **given)
        except BaseException as error:
            tell(await close(scope, error))
            raise
        # What a handler returns to say that it failed is to its dependencies as if it had raised it.
        if result is not None and isinstance(result, (Retry, Reject)):
            tell(await close(scope, result))
        elif failed := await close(scope):
            _fail(failed, delivery)
        return result

    return scoped


def _fail(failed: Sequence[Exception], delivery: Any) -> None:
    """The teardown is a part of the attempt, or else a session that fails to commit there would lose a message that is acked.

    When the handler has settled it already, it is too late for that.
    """
    if all(message.settled for message in delivery.messages):
        tell(failed)
    elif len(failed) == 1:
        raise failed[0]
    else:
        raise ExceptionGroup("dependencies could not be torn down", failed)


def asked(hint: Any) -> tuple[Any, str]:
    """The type, and the component of dishka's that it comes from: "" unless the annotation names one."""
    for mark in getattr(hint, "__metadata__", ()):
        if type(mark).__module__ == _DISHKA:
            return hint.__origin__, mark.component
    return hint, ""


async def close(scope: AsyncContainer, error: BaseException | None = None) -> Sequence[Exception]:
    """Tear down what a scope has made, the last first. After a failure or a cancellation there is a limit to that.

    Args:
        error: what failed. Dependencies that are generators see it at their `yield`.

    Returns:
        What went wrong in that.
    """
    if error is not None:
        return await _close_quickly(scope, error)
    try:
        await scope.close()
    except Exception as failed:
        return _parts(failed)
    except BaseException as cancelled:  # in the midst of it: the others have their turn, too
        tell(await _close_quickly(scope, cancelled))
        raise
    return ()


async def _close_quickly(scope: AsyncContainer, error: BaseException) -> Sequence[Exception]:
    with anyio.move_on_after(GRACE, shield=True):
        try:
            await scope.close(error)
        except Exception as failed:
            return _parts(failed)
        return ()
    return (TimeoutError(f"it took longer than {GRACE:g} s, and was left off"),)


def _parts(failed: Exception) -> Sequence[Exception]:
    return failed.exceptions if isinstance(failed, ExceptionGroup) else (failed,)


def tell(failed: Sequence[Exception]) -> None:
    """Log what went wrong where nobody can be told."""
    for error in failed:
        logger.error("The teardown of a dependency failed: %s: %s", type(error).__name__, error, exc_info=error)
