"""Startup checks: what must be true before a consumer starts.

    @app.check
    async def the_warehouse_answers(warehouse: Depends[Warehouse]) -> None:
        await warehouse.ping()

A check fails by raising, or by returning False. All checks run, in their order, and one error
reports all that failed.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from headrace.model.error_text import error_text
from headrace.model.errors import ConfigurationError
from headrace.runtime.handlers.dependencies import Dependencies, Need, dependency_of
from headrace.runtime.handlers.signature import annotated, is_async, name_of

logger = logging.getLogger("headrace")


class Check(msgspec.Struct, frozen=True):
    """A check as declared: its function, the function's dependencies, and its timeout in seconds."""

    name: str
    function: Callable[..., Any]
    wanted: Mapping[str, Any]
    timeout: float

    @classmethod
    def of(cls, function: Callable[..., Any], timeout: float) -> Check:
        """Make a check of a function. Raises `ConfigurationError` if it has a parameter that can't be provided."""
        name = name_of(function)
        if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(f"The check {name!r} must be a function, or an async one, that doesn't yield.")
        wanted = {}
        for parameter, annotation in annotated(function, f"The check {name!r}"):
            needed = dependency_of(annotation)
            if needed is not None:
                wanted[parameter.name] = needed
            elif parameter.default is parameter.empty:
                raise ConfigurationError(
                    f"The check {name!r} takes {parameter.name!r}: annotate it as a dependency, Depends[…], or give it a default."
                )
        return cls(name, function, wanted, timeout)

    @property
    def needs(self) -> list[Need]:
        """Its dependencies. They must live as long as the app."""
        who = f"The check {self.name!r}"
        return [Need(subject=who, parameter=name, hint=hint, scope="app") for name, hint in self.wanted.items()]

    async def run(self, dependencies: Dependencies) -> str | None:
        """Run it. Returns the reason of its failure, or None."""
        result = None
        with anyio.move_on_after(self.timeout) as limit:
            try:
                result = await self._called(await dependencies.take(self.wanted))
            except Exception as error:
                logger.debug("The startup check %s failed", self.name, exc_info=True)
                return error_text(error)[0]
        if limit.cancelled_caught:
            return f"it took longer than {self.timeout:g} s"
        return "it returned False" if result is False else None

    async def _called(self, given: dict[str, Any]) -> Any:
        if is_async(self.function):
            return await self.function(**given)
        call = functools.partial(self.function, **given)
        result = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        return await result if inspect.isawaitable(result) else result


async def run_checks(checks: Sequence[Check], dependencies: Dependencies) -> None:
    """Run all checks. Raises one `ConfigurationError` that lists all failures."""
    wrong = [(check.name, why) for check in checks if (why := await check.run(dependencies)) is not None]
    if wrong:
        told = "".join(f"\n  {name}: {why}" for name, why in wrong)
        raise ConfigurationError(f"{len(wrong)} of {len(checks)} startup checks failed:{told}")
