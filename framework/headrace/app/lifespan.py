"""Lifespans: resources that live as long as the app runs.

    @app.lifespan
    async def warehouse(app: Any) -> AsyncIterator[Warehouse]:
        async with Warehouse.connect(URL) as warehouse:
            yield warehouse

Lifespans start after the database is connected, in the order in which they were added. They end in
the opposite order after the consumers have drained. The value that a lifespan yields is
`app.state`, and handlers can take it by its type, as `Depends[Warehouse]`.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from headrace.model.errors import ConfigurationError
from headrace.runtime.handlers.signature import is_async, name_of

Lifespan = Callable[..., AsyncIterator[Any]] | Callable[..., AbstractAsyncContextManager[Any]]


class Lifespans:
    """The lifespans of one app.

    Attributes:
        running: whether they have started.
    """

    def __init__(self) -> None:
        self._managers: list[tuple[str, Callable[[Any], Any], Any]] = []
        self._state: Any = None
        self.running = False

    @property
    def state(self) -> Any:
        """The value that the last started lifespan yielded. Raises `ConfigurationError` while none runs."""
        if not self.running:
            raise ConfigurationError(
                "The app has no state while it doesn't run. The state is the value that @app.lifespan yields. Use it inside"
                " `async with app.running():` or under `headrace run`. `async with app:` only connects."
            )
        return self._state

    def add(self, function: Lifespan) -> None:
        """Add a lifespan. Raises `ConfigurationError` if the function is not one."""
        name = name_of(function)
        if not callable(function) or is_async(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(
                f"The lifespan {name!r} is not an async generator function. Write `async def {name}(app): … yield state …`, or use"
                " @asynccontextmanager."
            )
        manager: Callable[..., Any] = function
        if inspect.isasyncgenfunction(function):
            manager = asynccontextmanager(function)
        self._managers.append((name, _taking_app(manager, name), _yields(function)))

    @asynccontextmanager
    async def run(self, app: Any) -> AsyncIterator[Mapping[Any, Any]]:
        """Start all lifespans, and end them after the block. Yields their values by type. Raises their errors."""
        states: dict[Any, Any] = {}
        self._state, self.running = None, True
        try:
            async with AsyncExitStack() as stack:
                for name, manager, kind in self._managers:
                    state = await stack.enter_async_context(_manager(manager(app), name))
                    if state is not None:
                        self._state = state
                        _add(states, state, kind, name)
                yield states
        finally:
            self._state, self.running = None, False


def _taking_app(manager: Callable[..., Any], name: str) -> Callable[[Any], Any]:
    """Wrap a manager that takes the app or nothing, so that it takes the app."""
    signature = inspect.signature(manager)
    for arguments in ((None,), ()):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return manager if arguments else lambda _: manager()
    raise ConfigurationError(f"The lifespan {name!r} takes more than the app. Write `async def {name}(app): …`.")


def _manager(manager: Any, name: str) -> AbstractAsyncContextManager[Any]:
    if not isinstance(manager, AbstractAsyncContextManager):
        raise ConfigurationError(
            f"The lifespan {name!r} returned a {type(manager).__name__}, which is not an async context manager. Write it with `yield`."
        )
    return manager


def _yields(function: Callable[..., Any]) -> Any | None:
    """The type that its annotation says it yields. None if the annotation can't be evaluated at runtime."""
    try:
        annotation = typing.get_type_hints(inspect.unwrap(function)).get("return")
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None
    return next(iter(typing.get_args(annotation)), None)


def _add(states: dict[Any, Any], state: Any, annotation: Any, name: str) -> None:
    for kind in {type(state), annotation} - {None, Any, object}:
        if kind in states:
            raise ConfigurationError(
                f"The lifespan {name!r} yields a {getattr(kind, '__name__', kind)}, as another one does. Handlers take the values by"
                " their type, so let the types differ."
            )
        states[kind] = state
