"""Declarations that an app and a router have in common: streams, consumers, captures, schedules and middleware."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from headrace.app.declaring.sources import Sources
from headrace.app.declaring.streams import Streams
from headrace.model.errors import ConfigurationError
from headrace.runtime.handlers.middleware import Middleware, check_middleware
from headrace.runtime.handlers.signature import is_async
from headrace.runtime.messages.publisher import Publisher
from headrace.runtime.settling.dead_letters import DeadLetterHook

H = TypeVar("H", bound=DeadLetterHook)


class Declarations(Streams, Sources):
    """The declarations of an app at import time, mostly with decorators."""

    def middleware(self, function: Middleware) -> Middleware:
        """Run an async function around every handler: `async def timed(delivery, call_next): … await call_next()`.

        The first one that you add is the outermost. See `headrace.runtime.handlers.middleware`.
        Raises `ConfigurationError`.
        """
        self._check_open()
        self._middleware.extend(check_middleware([function]))
        return function

    def on_dead_letter(self, hook: H) -> H:
        """Run an async function for each message that becomes a dead letter: `async def alert(message, error): …`.

        It gets the `Message` and the exception of the last attempt: what the handler raised, or a `Reject`, `Retry` or
        `TimeoutError`. It runs after the dead letter is stored, at most once: not if this process dies first, nor
        for a message whose process died, or that was received over HTTP or by SQL. The hooks of a consumer
        run one after the other, 10 seconds each at most. A hook that raises is logged, and changes nothing else.
        A router's hooks run for its own consumers. Raises `ConfigurationError`.
        """
        self._check_open()
        if not callable(hook) or not is_async(hook):
            raise ConfigurationError(f"The hook {hook!r} must be an async function: async def alert(message, error): …")
        self._dead_letter_hooks.append(hook)
        return hook

    def include(self, router: Router) -> None:
        """Take over what a router declares. Its middleware runs inside the app's, around its own handlers only.

        From then on nothing can be declared on the router, since nothing would run it. Several apps may include it.

        Args:
            router: a router, with all that it declares.

        Raises:
            ConfigurationError: a consumer, capture or stream is declared twice with different settings.
        """
        if not isinstance(router, Router):
            raise ConfigurationError(f"app.include takes a headrace.Router, not {type(router).__name__}.")
        self._check_open()
        if router is self:
            raise ConfigurationError("A router can't include itself.")
        router.close()
        for name, spec in router._streams.items():
            known = self._streams.get(name)
            if spec is not None and known is not None and spec != known:
                raise ConfigurationError(f"The stream {name!r} is declared twice, with different settings.")
            self._streams[name] = known if spec is None else spec
        for stored_as in router._formats.values():
            self._add_format(stored_as)
        router.apps.append(self)
        for capture_spec in router.captures:
            self._add_capture(capture_spec)
        for schedule in router.schedules:
            self._add_schedule(schedule)
        for consumer in router.consumers:
            inner = consumer.handling.middleware
            hooks = (*router._dead_letter_hooks, *consumer.handling.dead_letter_hooks)
            handling = replace(consumer.handling, middleware=(*router._middleware, *inner), dead_letter_hooks=hooks)
            self._add(replace(consumer, handling=handling))


class Router(Declarations):
    """Declares consumers, streams, captures and middleware without an app.

        # shop/shipping.py
        router = Router()

        @router.consumer("orders")
        async def ship(order: Order) -> None: ...

        # shop/service.py
        app = App()
        app.include(shipping.router)

    The decorators and their arguments are those of `App`. Dependencies, lifespans and checks belong to the app.
    """

    def __init__(self) -> None:
        super().__init__()
        self._closed = False
        self.apps: list[Declarations] = []

    def close(self) -> None:
        """Refuse further declarations, because the router was included."""
        self._closed = True

    def _publishes(self, stream: str) -> Publisher:
        found = [app._publishes(stream) for app in self.apps]
        if len(found) > 1:
            found = [publisher for publisher in found if publisher.open]
        if len(found) == 1:
            return found[0]
        raise ConfigurationError(
            f"The stream {stream!r} is declared on a router, and {len(self.apps) or 'no'} apps include it"
            f"{f', of which {len(found)} are connected' if self.apps else ''}: publish with app.publish({stream!r}, …)."
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError(
                "The router was included already, so this would never run. Declare it above app.include(router)."
            )
