"""Webhook endpoint, `POST …/webhook/{name}`. It verifies, deduplicates and publishes deliveries.

Senders have no tokens. Signatures authenticate them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from headrace import store
from headrace.model import payloads
from headrace.model.errors import UnknownSource, UnknownStream
from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.data_plane.registry import FRESH, MOST
from headrace.server.engine import Engine
from headrace.server.errors import Problem
from headrace.server.transport.http import Call, Endpoint, Reply
from headrace.sources.deliveries import Delivery, WebhookMessage, webhook_message
from headrace.sources.signatures import InvalidSignature
from headrace.sources.templates import KeyTemplate
from headrace.sources.webhook import NAME, WebhookSpec

_SUCCESS = Reply(200, b'{"success":true}')
_LONGEST_NAME = 48


class _Known(msgspec.Struct, frozen=True):
    spec: WebhookSpec
    template: KeyTemplate
    until: float


class Webhooks:
    """The endpoint of all webhook sources.

    Args:
        engine: publishes.
        clock: monotonic time in seconds.
        date: seconds since 1970, against which signatures are checked.
    """

    def __init__(
        self, engine: Engine, *, clock: Callable[[], float] = time.monotonic, date: Callable[[], float] = time.time
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._date = date
        self._known: dict[str, _Known] = {}
        engine.remember(self._known.clear)

    def find(self, method: str, path: str) -> tuple[Endpoint, tuple[str, ...]] | None:
        """Return the endpoint for a path and the source's name in it. None if the path isn't a webhook's."""
        parts = path.split("/")
        if len(parts) != 4 or parts[1] not in ("v1", "api") or parts[2] != "webhook" or not parts[3]:
            return None
        return (self.deliver if method == "POST" else not_by_post), (parts[3],)

    async def deliver(self, call: Call) -> Reply:
        """Publish a delivery. Returns after the commit. A repeated delivery gets the same answer."""
        source = await self._source(call.names[0])
        spec = source.spec
        if spec.max_body is not None and len(call.body) > spec.max_body:
            raise Problem(
                413,
                "too_large",
                f"The body has {len(call.body):,} bytes, and the source {spec.name!r} takes {spec.max_body:,} at most.",
            )
        delivery = Delivery(spec.name, call.headers, call.query_string, call.body)
        try:
            message = webhook_message(spec, source.template, delivery, self._date())
        except InvalidSignature as error:
            raise Problem(401, "invalid_signature", str(error)) from error
        try:
            stream = await self._engine.stream(spec.stream)
            await self._engine.publish(stream, _incoming(message))
        except UnknownStream:
            self._engine.forget()  # the stream was deleted, and its source with it
            raise
        return _SUCCESS

    async def _source(self, name: str) -> _Known:
        known = self._known.get(name)
        if known is not None and known.until > self._clock():
            return known
        if not NAME.fullmatch(name):  # needs no query
            raise UnknownSource(f"There is no source {name[:_LONGEST_NAME]!r}.")
        found = await store.source_with_secrets(self._engine.app.database, name)
        if found.kind != "webhook" or found.name != name:
            raise UnknownSource(f"There is no webhook source {name!r}.")
        spec = WebhookSpec.stored(found.name, found.stream, found.settings)
        known = _Known(spec, KeyTemplate(spec.key), self._clock() + FRESH)
        if len(self._known) >= MOST:
            self._known.clear()
        self._known[name] = known
        return known


async def not_by_post(call: Call) -> Reply:
    """Answer other methods with 405. Some senders try a URL by GET before they use it."""
    raise Problem(
        405,
        "method_not_allowed",
        f"Deliveries of the webhook {call.names[0][:_LONGEST_NAME]!r} come by POST. There is nothing to be read here, and no challenge"
        " is answered.",
        headers={"allow": "POST"},
    )


def _incoming(message: WebhookMessage) -> Incoming:
    incoming = Incoming()
    incoming.add(
        message.key, payloads.encode(message.data), payloads.encode_headers(message.headers), message.message_id
    )
    return incoming
