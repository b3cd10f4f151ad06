"""Declarations of an application: those of a router, and what its handlers need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload

from headrace.app.checks import Check
from headrace.app.declarations import Declarations
from headrace.app.lifespan import Lifespan
from headrace.app.resources import Resources
from headrace.model.durations import Duration, seconds
from headrace.runtime.formats.format import check_capture
from headrace.runtime.handlers.dependencies import Scope

if TYPE_CHECKING:
    from dishka import Provider

F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound=Lifespan)


class Declared(Declarations):
    """The part of an `App` that you write at import time, mostly with decorators."""

    def __init__(self, streams: Sequence[str]) -> None:
        super().__init__(streams)
        self._resources = Resources()

    def lifespan(self, function: L) -> L:
        """Make an async generator function a lifespan of the app: `async def pool(app): … yield pool …`.

        It starts after the database is connected and before the consumers start, and ends after
        they have drained. The value that it yields is `app.state`, and handlers can take it by its
        type. Several lifespans are nested, the first outermost. An error that it raises ends the
        start unchanged.

        Returns:
            The function. Raises `ConfigurationError` if it is neither an async generator function
            nor an `@asynccontextmanager`.
        """
        self._resources.lifespans.add(function)
        return function

    @property
    def state(self) -> Any:
        """The value that the last lifespan yielded. Raises `ConfigurationError` while the app does not run."""
        return self._resources.lifespans.state

    @overload
    def provide(self, source: F, *, scope: Scope = "message", provides: Any = None, override: bool = False) -> F: ...
    @overload
    def provide(self, source: Provider) -> Provider: ...
    @overload
    def provide(
        self, *, scope: Scope = "message", provides: Any = None, override: bool = False
    ) -> Callable[[F], F]: ...

    def provide(
        self, source: Any = None, *, scope: Scope = "message", provides: Any = None, override: bool = False
    ) -> Any:
        """Make a function provide the type of its return annotation, to handlers that take it as `Depends[T]`.

        The function's own annotated parameters are provided in turn. Always available are the
        `Message` or `Batch` of the delivery, the `Transaction` of a transactional handler, the
        `App`, and the values of lifespans.

        Args:
            source: a function, plain or async. Or a generator function, plain or async, which
                continues after its `yield` when the scope ends, and gets the error there if one
                occurred. Or a class, created with the parameters of its `__init__`. Or a dishka
                `Provider`, unchanged.
            scope: "message" creates it for each message or batch, and closes it when the handler
                has ended. "app" creates it before the consumers start, and closes it after they
                have drained.
            provides: the provided type, if it is not the annotated one, such as a protocol.
            override: replace an existing provider of the same type, or the value of a lifespan, for
                example in a test.

        Returns:
            The source. Raises `ConfigurationError`.
        """
        if source is None:
            return lambda source: self.provide(source, scope=scope, provides=provides, override=override)
        self._resources.providers.add(source, scope, provides, override=override)
        return source

    @overload
    def check(self, function: F) -> F: ...
    @overload
    def check(self, *, timeout: Duration = "30s") -> Callable[[F], F]: ...

    def check(self, function: Any = None, *, timeout: Duration = "30s") -> Any:
        """Make a function a startup check. Consumers start only if it returns. It fails by raising or returning False.

        All checks run, and one `ConfigurationError` reports all that failed. A plain function runs
        in a thread. It may take dependencies that live as long as the app, as `Depends[T]`.

        Args:
            timeout: how long it may take.

        Returns:
            The function. Raises `ConfigurationError` if it takes anything else.
        """
        if function is None:
            return lambda function: self._check(function, timeout)
        return self._check(function, timeout)

    def _check(self, function: F, timeout: Duration) -> F:
        self._resources.checks.append(Check.of(function, seconds(timeout, "timeout")))
        return function

    def asyncapi(self, *, title: str, version: str = "1.0.0") -> dict[str, Any]:
        """Describe the app as an AsyncAPI 3.0 document, which `json.dumps` can write.

        Streams are channels, with the types that they carry as messages. Handlers are operations. Filters, retries
        and other settings are extensions that begin with `x-headrace-`.

        Args:
            title: the title of the document.
            version: the version of what the document describes.

        Raises:
            ConfigurationError: two payload types have one name and differ.
        """
        from headrace.app.asyncapi.document import Described, document  # not imported by workers

        declared = Described(
            streams=self._streams,
            formats=self._formats,
            consumers=self.consumers,
            captures=self.captures,
            schedules=[schedule.spec for schedule in self.schedules],
        )
        return document(declared, title, version)

    def _check_formats(self) -> None:
        """Check what is published to streams with a format, once everything is declared. Raises `ConfigurationError`."""
        for stored_as in self._formats.values():
            stored_as.upcasters.check()
        for spec in self.captures:
            if spec.stream in self._formats:
                check_capture(self._formats[spec.stream], spec.name)
