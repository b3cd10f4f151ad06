"""Lifespans: what lives as long as the app runs.

    @app.lifespan
    async def warehouse(app: App) -> AsyncIterator[Warehouse]:
        async with Warehouse.connect(URL) as warehouse:
            yield warehouse

They begin when the database is connected, in the order in which they were added, and end in the opposite order when the consumers have
drained. What one yields is `app.state`, and can be taken by its type, as `Depends[Warehouse]`.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from headrace.model.errors import ConfigurationError
from headrace.runtime.handlers.signature import is_async, name_of

if TYPE_CHECKING:
    from headrace.app.app import App

Lifespan = Callable[..., AsyncIterator[Any]] | Callable[..., AbstractAsyncContextManager[Any]]


class Lifespans:
    """Those of one app.

    Attributes:
        running: whether they have begun.
    """

    def __init__(self) -> None:
        self._managers: list[tuple[str, Callable[[App], Any], Any]] = []
        self._state: Any = None
        self.running = False

    @property
    def state(self) -> Any:
        """What the last that has begun has yielded. Raises `ConfigurationError` while none runs."""
        if not self.running:
            raise ConfigurationError(
                "The app has no state while it doesn't run: it is what @app.lifespan yields, between the start and the end of"
                " `async with app.running():` or `headrace run`. `async with app:` only connects."
            )
        return self._state

    def add(self, function: Lifespan) -> None:
        """Raises `ConfigurationError` for what is not a lifespan."""
        name = name_of(function)
        if not callable(function) or is_async(function) or inspect.isgeneratorfunction(function):
            raise ConfigurationError(
                f"The lifespan {name!r} must be an async generator function, `async def {name}(app): … yield state …`, or an"
                " @asynccontextmanager."
            )
        manager: Callable[..., Any] = function
        if inspect.isasyncgenfunction(function):
            manager = asynccontextmanager(function)
        self._managers.append((name, _taking_app(manager, name), _yields(function)))

    @asynccontextmanager
    async def run(self, app: App) -> AsyncIterator[Mapping[Any, Any]]:
        """Begin all, and end them after the block. Yields what they have yielded, by its type. Raises what they raise."""
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


def _taking_app(manager: Callable[..., Any], name: str) -> Callable[[App], Any]:
    """It takes the app, or nothing."""
    signature = inspect.signature(manager)
    for given in ((None,), ()):
        try:
            signature.bind(*given)
        except TypeError:
            continue
        return manager if given else lambda _: manager()
    raise ConfigurationError(f"The lifespan {name!r} takes more than the app: write `async def {name}(app): …`.")


def _manager(made: Any, name: str) -> AbstractAsyncContextManager[Any]:
    if not isinstance(made, AbstractAsyncContextManager):
        raise ConfigurationError(
            f"The lifespan {name!r} returned a {type(made).__name__}, and not an async context manager: write it with `yield`."
        )
    return made


def _yields(function: Callable[..., Any]) -> Any | None:
    """The type that it says it yields. What is there only for the type checker is passed over: the state's own type does, too."""
    try:
        said = typing.get_type_hints(inspect.unwrap(function)).get("return")
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None
    return next(iter(typing.get_args(said)), None)


def _add(states: dict[Any, Any], state: Any, said: Any, name: str) -> None:
    for kind in {type(state), said} - {None, Any, object}:
        if kind in states:
            raise ConfigurationError(
                f"The lifespan {name!r} yields a {getattr(kind, '__name__', kind)}, as another one does: let them differ in type, so that"
                " each can be told by it."
            )
        states[kind] = state
