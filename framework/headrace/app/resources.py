"""Resources around the running consumers, outermost first: lifespans, dependencies and startup checks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from headrace.app.checks import Check, run_checks
from headrace.app.consumer import Consumer
from headrace.app.lifespan import Lifespans
from headrace.runtime.handlers.dependencies import Dependencies, Need
from headrace.runtime.messages.batch import Batch
from headrace.runtime.messages.message import Message
from headrace.runtime.messages.transaction import Transaction

if TYPE_CHECKING:
    from headrace.runtime.handlers.providers import Providers


class Resources:
    """The resources of one app, as they are declared.

    Attributes:
        lifespans, checks: in the order of their declaration.
    """

    def __init__(self) -> None:
        self.lifespans = Lifespans()
        self.checks: list[Check] = []
        self._providers: Providers | None = None

    @property
    def providers(self) -> Providers:
        """The providers of dependencies. Created on first use, since that takes time and not every app needs them."""
        if self._providers is None:
            from headrace.runtime.handlers.providers import Providers

            self._providers = Providers()
        return self._providers

    @asynccontextmanager
    async def open_all(
        self, app: Any, consumers: Sequence[Consumer], *, teardown: float
    ) -> AsyncIterator[Dependencies]:
        """Start the lifespans and dependencies, and run the checks. End them after the block.

        Args:
            teardown: time limit in seconds for a teardown after a failure or a cancellation.

        Raises:
            ConfigurationError: a dependency can't be provided, or a check failed. Errors of a
                lifespan or a provider are raised unchanged.
        """
        needs = [*_needs_of_handlers(consumers), *_needs_of_checks(self.checks)]
        async with (
            self.lifespans.run(app) as states,
            self._dependencies(needs, {**_app_by_type(app), **states}, teardown) as dependencies,
        ):
            await run_checks(self.checks, dependencies)
            yield dependencies

    @asynccontextmanager
    async def _dependencies(
        self, needs: Sequence[Need], values: Mapping[Any, Any], teardown: float
    ) -> AsyncIterator[Dependencies]:
        if not needs:
            yield Dependencies(teardown=teardown)
            return
        async with self.providers.open(values, needs, teardown=teardown) as dependencies:
            yield dependencies


def _app_by_type(app: Any) -> dict[Any, Any]:
    """The app by its own class, and by the Headrace classes that it inherits from."""
    return {kind: app for kind in type(app).__mro__ if kind is not object}


def _needs_of_handlers(consumers: Iterable[Consumer]) -> Iterator[Need]:
    for consumer in consumers:
        handler, handling = consumer.handler, consumer.handling
        absent: dict[Any, str] = {}
        if handling.batch is None:
            absent[Batch] = "and handles single messages. Take a Message, or set batch=100."
        else:
            absent[Message] = "and handles batches. Take a Batch, or leave out batch=…."
        if not handling.transactional:
            absent[Transaction] = "and runs in no transaction. Set transactional=True."
        for name, hint in handler.dependencies.items():
            yield Need(
                subject=f"The handler {handler.name!r}", parameter=name, hint=hint, scope="message", absent=absent
            )


def _needs_of_checks(checks: Iterable[Check]) -> Iterator[Need]:
    for check in checks:
        yield from check.needs
