"""Dependencies: what a handler takes besides its message.

    async def ship(order: Order, session: Depends[Session], warehouse: Depends[Warehouse]) -> None: ...

Dependencies of scope "app" are made once, before the consumers start, and torn down after they have
drained. Those of scope "message" are made for each delivery, a message or a batch, and torn down
when its handler has ended. A handler that takes none of these pays nothing for them.

dishka (https://dishka.readthedocs.io) finds the providers and resolves what they need. See
`headrace.runtime.handlers.providers`, which is imported only where something is provided or taken.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar, get_origin

import anyio
import msgspec

from headrace.model.errors import ConfigurationError
from headrace.model.log import Log
from headrace.model.outcomes import Reject, Retry
from headrace.runtime.calls import Call
from headrace.runtime.messages.transaction import Transaction

if TYPE_CHECKING:
    from dishka import AsyncContainer

log = Log("headrace")

T = TypeVar("T")

Scope = Literal["app", "message"]
"""The lifetime of a dependency: "app" is from the start of the app to the end of its drain, "message"
is one delivery."""


class _Mark:
    """Marks an annotation as that of a dependency."""

    def __repr__(self) -> str:
        return "Depends"


MARK = _Mark()
_DISHKA = "dishka.entities.key"  # the module of dishka's marks, by name, so that looking for them doesn't import it

_PROVIDED_BY = (
    "{form} is FastAPI's form. Here a parameter names the type that it takes, `db: Depends[Db]`, and `@app.provide` on"
    " {provider} makes it provide the type of its return annotation."
)


class _Depends:
    def __getitem__(self, hint: Any) -> Any:
        return Annotated[hint, MARK]

    def __call__(self, provider: Any = None, **_: Any) -> NoReturn:
        name = getattr(provider, "__name__", "the function")
        raise ConfigurationError(_PROVIDED_BY.format(form=f"Depends({name})", provider=name))


if TYPE_CHECKING:
    Depends = Annotated[T, MARK]
else:
    Depends = _Depends()
"""Marks a dependency in a handler's signature. `Depends[Pool]` passes the Pool. To a type checker the
parameter is a Pool."""


def dependency_of(annotation: Any) -> Any | None:
    """Return the type of a dependency if the annotation marks one, with `Depends` or dishka's
    `FromDishka`. Otherwise None.

    Raises:
        ConfigurationError: the annotation doesn't name a type.
    """
    if isinstance(annotation, _Depends):
        raise ConfigurationError("Depends needs a type. Write Depends[Pool].")
    if get_origin(annotation) is not Annotated:
        return None
    if MARK in annotation.__metadata__:
        return annotation.__origin__
    if any(type(mark).__module__.startswith("fastapi.") for mark in annotation.__metadata__):
        raise ConfigurationError(_PROVIDED_BY.format(form="Annotated[Db, Depends(…)]", provider="the function"))
    if any(type(mark).__module__ == _DISHKA for mark in annotation.__metadata__):
        return annotation  # it may name a dishka component
    return None


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """A dependency that a handler or another function takes.

    Args:
        subject: the description of the function in errors, such as "The handler 'ship'".
        parameter: the name of the parameter.
        hint: the type that is taken.
        scope: the lifetime of the function's call: "app" or "message".
        absent: types that are unavailable to it, each with what would provide it.
    """

    subject: str
    parameter: str
    hint: Any
    scope: Scope
    absent: Mapping[Any, str] = {}


class Dependencies:
    """The available dependencies during one run of the app.

    Args:
        container: dishka's container of scope "app". None if no function takes anything.
        kept: the values that the container already has, by type.
        teardown: time limit in seconds for a teardown after a failure or a cancellation.
    """

    def __init__(
        self, container: AsyncContainer | None = None, kept: Mapping[Any, Any] | None = None, *, teardown: float
    ) -> None:
        self._container = container
        self._kept = kept or {}
        self._teardown = teardown

    def resolve(self, call: Callable[..., Any], wanted: Mapping[str, Any]) -> Call:
        """Return the call with its dependencies, by parameter name. Those of scope "app" are shared,
        those of scope "message" are made for each delivery."""
        kept = {name: self._kept[hint] for name, hint in wanted.items() if hint in self._kept}
        if kept:
            call = functools.partial(call, **kept)
        fresh = {name: hint for name, hint in wanted.items() if hint not in self._kept}
        return _fresh(self._open(), call, fresh, self._teardown) if fresh else call

    async def take(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return dependencies of scope "app", by parameter name."""
        return {
            name: self._kept[hint] if hint in self._kept else await self._open().get(*key_parts(hint))
            for name, hint in wanted.items()
        }

    def _open(self) -> AsyncContainer:
        assert self._container is not None
        return self._container


def _fresh(enter: AsyncContainer, call: Callable[..., Any], wanted: Mapping[str, Any], teardown: float) -> Call:
    """Return the call in a scope of its own, which ends with the call."""
    parts = [(name, *key_parts(hint)) for name, hint in wanted.items()]

    async def scoped(payload: Any, delivery: Any) -> Any:
        scope = enter({type(delivery): delivery, Transaction: delivery.transaction})
        try:
            given = {name: await scope.get(kind, component) for name, kind, component in parts}
            result = await call(payload, delivery, **given)
        except BaseException as error:
            log_failures(await close(scope, teardown, error))
            raise
        # Dependencies see a returned failure as if the handler had raised it.
        if result is not None and isinstance(result, (Retry, Reject)):
            log_failures(await close(scope, teardown, result))
        elif failed := await close(scope, teardown):
            _fail(failed, delivery)
        return result

    return scoped


def _fail(failed: Sequence[Exception], delivery: Any) -> None:
    """Raise the errors of a teardown, since the teardown is part of the attempt. Otherwise a message
    would be acked although the commit of a session had failed.

    If the handler has settled the message already, they are only logged.
    """
    if all(message.settled for message in delivery.messages):
        log_failures(failed)
    elif len(failed) == 1:
        raise failed[0]
    else:
        raise ExceptionGroup("dependencies could not be torn down", failed)


def key_parts(hint: Any) -> tuple[Any, str]:
    """Return the type, and the dishka component that it comes from, which is "" unless the annotation
    names one."""
    for mark in getattr(hint, "__metadata__", ()):
        if type(mark).__module__ == _DISHKA:
            return hint.__origin__, mark.component
    return hint, ""


async def close(scope: AsyncContainer, limit: float, error: BaseException | None = None) -> Sequence[Exception]:
    """Tear down what a scope has made, in reverse order.

    Args:
        limit: time limit in seconds after a failure or a cancellation.
        error: the failure. Dependencies that are generators see it at their `yield`.

    Returns:
        The errors of the teardown.
    """
    if error is not None:
        return await _close_quickly(scope, limit, error)
    try:
        await scope.close()
    except Exception as failed:
        return _parts(failed)
    except BaseException as cancelled:  # cancelled during the teardown, so the other dependencies are torn down quickly
        log_failures(await _close_quickly(scope, limit, cancelled))
        raise
    return ()


async def _close_quickly(scope: AsyncContainer, limit: float, error: BaseException) -> Sequence[Exception]:
    with anyio.move_on_after(limit, shield=True):
        try:
            await scope.close(error)
        except Exception as failed:
            return _parts(failed)
        return ()
    return (TimeoutError(f"it took longer than {limit:g} s, and was left off"),)


def _parts(failed: Exception) -> Sequence[Exception]:
    return failed.exceptions if isinstance(failed, ExceptionGroup) else (failed,)


def log_failures(failed: Sequence[Exception]) -> None:
    """Log errors of a teardown that can't be raised."""
    for error in failed:
        log.error("teardown of a dependency failed", error=f"{type(error).__name__}: {error}", exc_info=error)
