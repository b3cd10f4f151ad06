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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from headrace.model.errors import ConfigurationError
from headrace.model.log import Log
from headrace.model.text.error_text import error_text
from headrace.runtime.handlers.dependencies import Dependencies, Need, dependency_of
from headrace.runtime.handlers.signature import annotated, is_async, name_of
from headrace.runtime.isolation import failed_inside

log = Log("headrace")


class Check(msgspec.Struct, frozen=True):
    """A check as declared: its function, the function's dependencies, and its timeout in seconds."""

    name: str
    function: Callable[..., Any]
    dependency_hints: Mapping[str, Any]
    timeout: float

    @classmethod
    def of(cls, function: Callable[..., Any], timeout: float) -> Check:
        """Make a check of a function. Raises `ConfigurationError` if it has a parameter that can't be provided."""
        name = name_of(function)
        if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                f"The check {name!r} is a generator or no function. Write a function, plain or async, that doesn't yield."
            )
        dependency_hints = {}
        for parameter, annotation in annotated(function, f"The check {name!r}"):
            needed = dependency_of(annotation)
            if needed is not None:
                dependency_hints[parameter.name] = needed
            elif parameter.default is parameter.empty:
                raise ConfigurationError(
                    f"The check {name!r} takes {parameter.name!r}, which can't be provided. Annotate it as a dependency, Depends[…], or give it a default."
                )
        return cls(name, function, dependency_hints, timeout)

    @property
    def needs(self) -> list[Need]:
        """Its dependencies. They must live as long as the app."""
        who = f"The check {self.name!r}"
        return [
            Need(subject=who, parameter=name, hint=hint, scope="app") for name, hint in self.dependency_hints.items()
        ]

    async def run(self, dependencies: Dependencies) -> str | None:
        """Run it. Returns the reason of its failure, or None."""
        result = None
        with anyio.move_on_after(self.timeout) as limit:
            try:
                result = await self._call(await dependencies.take(self.dependency_hints))
            except BaseException as error:
                if not failed_inside(error):
                    raise
                log.debug("startup check failed", check=self.name, error=repr(error))
                return error_text(error)[0]
        if limit.cancelled_caught:
            return f"it took longer than {self.timeout:g} s"
        return "it returned False" if result is False else None

    async def _call(self, arguments: dict[str, Any]) -> Any:
        if is_async(self.function):
            return await self.function(**arguments)
        call = functools.partial(self.function, **arguments)
        result = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        return await result if inspect.isawaitable(result) else result


async def run_checks(checks: Sequence[Check], dependencies: Dependencies) -> None:
    """Run all checks. Raises one `ConfigurationError` that lists all failures."""
    failures = [(check.name, reason) for check in checks if (reason := await check.run(dependencies)) is not None]
    if failures:
        reasons = "".join(f"\n  {name}: {reason}" for name, reason in failures)
        raise ConfigurationError(f"{len(failures)} of {len(checks)} startup checks failed:{reasons}")
