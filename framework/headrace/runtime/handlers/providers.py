"""Providers: the functions and classes that make dependencies. Imported only by apps that have some,
since it imports dishka."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from dishka import AsyncContainer, Provider, make_async_container
from dishka.dependency_source import Alias, Factory
from dishka.entities.factory_type import FactoryType
from dishka.exception_base import DishkaError
from dishka.provider import BaseProvider
from dishka.provider.exceptions import MissingHintsError, MissingReturnHintError

from headrace.model.errors import ConfigurationError
from headrace.runtime.handlers.dependencies import Dependencies, Need, close, key_parts, log_failures
from headrace.runtime.handlers.graph import SCOPES, Graph
from headrace.runtime.handlers.signature import name_of, name_of_type
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message
from headrace.runtime.messages.transaction import Transaction

OF_A_DELIVERY = (Message, Batch, Transaction)
"""Types that are available without a provider, besides what the app knows."""


class Providers:
    """The providers of an app."""

    def __init__(self) -> None:
        self._providers: list[BaseProvider] = []
        self._types: dict[Any, str] = dict.fromkeys(OF_A_DELIVERY, "Headrace itself")
        self._overrides: set[Any] = set()

    def add(self, source: Any, scope: str, provides: Any, *, override: bool) -> None:
        """See `App.provide`."""
        if isinstance(source, BaseProvider):
            self._providers.append(source)
            return
        if scope not in SCOPES:
            raise ConfigurationError(f"scope={scope!r} must be 'message', made for each delivery, or 'app', made once.")
        if not callable(source) or (isinstance(source, type) and issubclass(source, BaseProvider)):
            raise ConfigurationError(
                f"@app.provide takes a function, a class, or an object of dishka's Provider, not {source!r}."
            )
        name = name_of(source)
        if isinstance(source, functools.partial) or inspect.isabstract(source):
            kind = "an abstract class" if inspect.isabstract(source) else "a functools.partial"
            raise ConfigurationError(f"@app.provide can't use {kind} ({name!r}). Write a function.")
        provider = Provider()
        try:
            made = provider.provide(_steps(source), scope=SCOPES[scope], provides=provides, override=override)
        except (DishkaError, TypeError) as error:
            raise ConfigurationError(f"The provider {name!r} can't be used: {_sentence(error)}") from error
        for part in made.dependency_sources:
            if isinstance(part, (Factory, Alias)):
                self._claim(part.provides.type_hint, name, override=override)
        self._providers.append(provider)

    def _claim(self, kind: Any, name: str, *, override: bool) -> None:
        if kind is type(None):
            raise ConfigurationError(f"The provider {name!r} provides None. Annotate it with the type that it returns.")
        if kind in self._types and not override:
            raise ConfigurationError(
                f"{name_of_type(kind)} has two providers, {self._types[kind]} and {name!r}. Remove one of them, or pass override=True"
                " to the one that applies."
            )
        self._types[kind] = repr(name)
        if override:
            self._overrides.add(kind)

    def with_values(self, values: Mapping[Any, Any]) -> Providers:
        """Return providers that use these values, by type, instead of what they would make."""
        copy = Providers()
        copy._providers, copy._types, copy._overrides = [*self._providers], {**self._types}, {*self._overrides}
        for kind, value in values.items():
            copy.add(_returning(value), "app", kind, override=True)
        return copy

    @asynccontextmanager
    async def open(
        self, known: Mapping[Any, Any], needs: Sequence[Need], *, teardown: float
    ) -> AsyncIterator[Dependencies]:
        """Make the dependencies of scope "app" that are needed, and tear them down at the end.

        Args:
            known: values that needn't be made, by type.
            needs: the dependencies that handlers and others take.
            teardown: time limit in seconds for a teardown after a failure or a cancellation.

        Raises:
            ConfigurationError: a dependency is missing, needs itself, or needs one with a shorter
                lifetime.
            Exception: what a provider raises.
        """
        container = self._container({kind: value for kind, value in known.items() if not self._overridden(kind)})
        try:
            kept = await _keep(container, needs)
            yield Dependencies(container, kept, teardown=teardown)
        except BaseException as error:
            log_failures(await close(container, teardown, error))
            raise
        log_failures(await close(container, teardown))

    def _overridden(self, kind: Any) -> bool:
        """Whether an override provides a type that exists anyway. Raises `ConfigurationError` for a
        provider of it without override."""
        if kind in self._types and kind not in self._overrides:
            raise ConfigurationError(
                f"{name_of_type(kind)} is provided by {self._types[kind]}, and exists without it, from @app.lifespan or as the app."
                " Remove the provider, or pass override=True."
            )
        return kind in self._overrides

    def _container(self, known: Mapping[Any, Any]) -> AsyncContainer:
        given = Provider()
        for kind in OF_A_DELIVERY:
            given.from_context(provides=kind, scope=SCOPES["message"])
        try:
            # Parts that no handler needs may be incomplete, so the graph is checked starting from
            # the handlers.
            return make_async_container(given, *self._providers, context=dict(known), skip_validation=True)
        except DishkaError as error:
            raise ConfigurationError(f"The providers do not fit together: {_sentence(error)}") from error


def _returning(value: Any) -> Callable[[], Any]:
    def given() -> Any:
        return value

    return given


async def _keep(container: AsyncContainer, needs: Sequence[Need]) -> dict[Any, Any]:
    """Check all dependencies, and make those of scope "app", in this task. Returns these by type."""
    graph = Graph(container)
    found = [(need.hint, list(graph.leads_to(need))) for need in needs]
    for _, way in found:
        for factory in way:
            if _lasts(factory, container):
                await container.get(factory.provides.type_hint, factory.provides.component)
    return {hint: await container.get(*key_parts(hint)) for hint, way in found if _lasts(way[-1], container)}


def _lasts(factory: Factory, container: AsyncContainer) -> bool:
    """Whether what a factory makes is kept for the lifetime of the app and can be requested. Inner
    parts of decorated dependencies can't."""
    lives = factory.scope is not None and factory.scope <= container.scope
    return lives and (factory.cache or factory.type is FactoryType.CONTEXT) and factory.provides.depth == 0


def _steps(source: Any) -> Any:
    """Adapt a generator to dishka, which sends a failure to the `yield`. A user's function expects it
    to be raised there."""
    inner = inspect.unwrap(source) if not isinstance(source, type) else source
    if inspect.isasyncgenfunction(inner):
        return _async_steps(source if inner is not source else asynccontextmanager(source))
    if inspect.isgeneratorfunction(inner):
        return _sync_steps(source if inner is not source else contextmanager(source))
    return source


def _async_steps(manager: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(manager)
    async def steps(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        entered = manager(*args, **kwargs)
        error = yield await entered.__aenter__()
        await entered.__aexit__(*_info(error))

    return steps


def _sync_steps(manager: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(manager)
    def steps(*args: Any, **kwargs: Any) -> Iterator[Any]:
        entered = manager(*args, **kwargs)
        error = yield entered.__enter__()
        entered.__exit__(*_info(error))

    return steps


def _info(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def _sentence(error: Exception) -> str:
    if isinstance(error, MissingReturnHintError):
        return "annotate it with the type that it returns, which is what it provides."
    if isinstance(error, MissingHintsError):
        return f"annotate {', '.join(error.missing)} with the types that it needs."
    return " ".join(str(error).split())
