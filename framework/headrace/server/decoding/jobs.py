"""What is decoded: a publish request, or the delivery of a webhook."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from headrace.model import payloads
from headrace.model.errors import public_text
from headrace.server.data_plane.bodies import read_messages
from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.errors import Problem
from headrace.sources.deliveries import Delivery, webhook_message
from headrace.sources.signatures import InvalidSignature
from headrace.sources.templates import KeyTemplate
from headrace.sources.webhook import WebhookSpec

_template = lru_cache(maxsize=1000)(KeyTemplate)  # parsed once for many deliveries


class DeliveryHead(msgspec.Struct, frozen=True):
    """A delivery without its body.

    Attributes:
        spec: its source.
        headers, query: of the request.
        now: seconds since 1970, to check the age of a signature.
    """

    spec: WebhookSpec
    headers: Sequence[tuple[bytes, bytes]]
    query: bytes
    now: float


def decoded(body: bytes, head: DeliveryHead | None = None) -> Incoming:
    """Decode and check a body.

    Args:
        head: of the delivery. None if it is a publish request.

    Raises:
        Exception: what is wrong with it, for `error_response`.
    """
    if head is None:
        return read_messages(body)
    spec = head.spec
    delivery = Delivery(spec.name, head.headers, head.query, body)
    try:
        message = webhook_message(spec, _template(spec.key), delivery, head.now)
    except InvalidSignature as error:
        raise Problem(401, "invalid_signature", public_text(error)) from error
    incoming = Incoming()
    incoming.add(
        message.key, payloads.encode(message.data), payloads.encode_headers(message.headers), message.message_id
    )
    return incoming
