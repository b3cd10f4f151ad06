"""Turns a webhook delivery into a message. No delivery is refused for the form of its body.

The body becomes the message's data:

- JSON stays as it was sent, whatever its content type says, since many senders get that wrong.
- A form (`application/x-www-form-urlencoded`) of up to 1 MB becomes an object. A name that occurs several
  times has a list.
- Any other text in UTF-8 becomes a string. That includes JSON that can't be stored, such as JSON
  with a NUL in a string.
- Anything else becomes `{"base64": "…"}`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from headrace.model.errors import InvalidData
from headrace.model.messages import payloads
from headrace.sources import signatures
from headrace.sources.templates import KeyTemplate, sha256
from headrace.sources.webhook import WebhookSpec

_FORM = "application/x-www-form-urlencoded"
_MAX_FORM = 1_000_000  # bytes. Decoding takes 100 ms per MB
_MAX_FORM_FIELDS = 10_000
_MAX_ID_BYTES = 150  # with the source's name it stays below the store's limit for message ids
_KEPT_HEADERS = ("content-type", "content-encoding")
_ID_HEADERS = ("webhook-id", "svix-id", "x-github-delivery")
_BOM = b"\xef\xbb\xbf"

# Numbers with a point keep their digits, since keys are made of them.
_decoder = msgspec.json.Decoder(float_hook=str)


class WebhookMessage(msgspec.Struct, frozen=True):
    """A message to publish. A repeated delivery has the same `message_id`. Clients can't publish under it. The store
    remembers the id of a `timed-webhook` for as long as its signature may be accepted, see `publish.sql`.
    """

    key: str
    data: msgspec.Raw
    headers: dict[str, str]
    message_id: str


class Delivery:
    """A sender's HTTP request.

    Args:
        name: the source's name.
        headers: names and values, as received.
        query: the URL's query string.
        body: the whole body.
    """

    def __init__(self, name: str, headers: Iterable[tuple[bytes, bytes]], query: bytes, body: bytes) -> None:
        self.name = name
        self.headers = _join_headers(headers)
        self.body = body
        self._query = query

    @cached_property
    def query(self) -> Mapping[str, str]:
        """The URL's parameters. If one occurs several times, the last value counts."""
        return dict(parse_qsl(self._query.decode("latin-1"), keep_blank_values=True))

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the body, as upper-case hexadecimal digits."""
        return sha256(self.body)

    @property
    def document(self) -> Any:
        """The parsed body if it is JSON or a form, otherwise None."""
        return self._content[1]

    @property
    def data(self) -> msgspec.Raw:
        """The body as the message's data."""
        return self._content[0]

    @cached_property
    def _content(self) -> tuple[msgspec.Raw, Any]:
        declared = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        # A body that begins like JSON is not a form. Some tools, such as curl, declare a form by
        # default.
        if declared == _FORM and not self.body.lstrip().startswith((b"{", b"[")):
            return _form(self.body) or _text_or_base64(self.body)
        return _json(self.body) or _text_or_base64(self.body)


def webhook_message(spec: WebhookSpec, template: KeyTemplate, delivery: Delivery, now: float) -> WebhookMessage:
    """Return the message for a delivery.

    Args:
        template: the parsed `spec.key`.
        now: seconds since 1970, to check the age of a signature.

    Raises:
        InvalidSignature: the signature is missing, too old or wrong.
    """
    kind = "webhook"
    if spec.signature is None:
        once = _once_unsigned(delivery)
    else:
        once = _once(delivery, signatures.verify(spec.signature, spec.secrets, delivery.headers, delivery.body, now))
        kind = "timed-webhook" if spec.signature in signatures.TIMED else kind
    return WebhookMessage(
        key=template.render(delivery),
        data=delivery.data,
        headers={
            name: delivery.headers[name] for name in (*_KEPT_HEADERS, *spec.keep_headers) if name in delivery.headers
        },
        message_id=f"{payloads.RESERVED_MESSAGE_IDS}{kind}:{spec.name}:{once}",
    )


def _once(delivery: Delivery, signed_id: str | None) -> str:
    """Return an id that is the same when a sender repeats a signed delivery. It is made of what the
    signature covers alone: the id, or the SHA-256 of the body.
    """
    if signed_id is None:
        return delivery.sha256
    encoded = signed_id.encode("utf-8", "surrogatepass")
    return signed_id if signed_id.isprintable() and len(encoded) <= _MAX_ID_BYTES else sha256(encoded)


def _once_unsigned(delivery: Delivery) -> str:
    """Return an id that is the same when a sender repeats an unsigned delivery: the SHA-256 of the
    sender's id, if there is one, and of the body. The id alone could be used up by anyone, and the
    delivery would be lost.
    """
    sent_id = next((value for name in _ID_HEADERS if (value := delivery.headers.get(name))), None)
    if sent_id is None:
        return delivery.sha256
    return sha256(f"{sent_id}\n{delivery.sha256}".encode("utf-8", "surrogatepass"))


def _join_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers by lower-case name. Repeated headers are joined with commas, as HTTP allows."""
    joined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        value = raw_value.decode("latin-1").replace("\0", "")  # HTTP forbids NUL, but not every server refuses it
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _json(body: bytes) -> tuple[msgspec.Raw, Any] | None:
    raw = msgspec.Raw(body.removeprefix(_BOM))
    try:
        document = _decoder.decode(raw)
        payloads.encode(raw)  # finds what JSON allows, but the store can't keep
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidData):
        return None
    return raw, document


def _form(body: bytes) -> tuple[msgspec.Raw, Any] | None:
    document: dict[str, Any] = {}
    if len(body) > _MAX_FORM:
        return None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FORM_FIELDS)
        for name, value in fields:
            document.setdefault(name, []).append(value)
        document = {name: values if len(values) > 1 else values[0] for name, values in document.items()}
        return msgspec.Raw(payloads.encode(document).encode()), document
    except ValueError:  # covers text that is not UTF-8, too many fields, and a NUL
        return None


def _text_or_base64(body: bytes) -> tuple[msgspec.Raw, None]:
    try:
        return msgspec.Raw(payloads.encode(body.decode()).encode()), None
    except (UnicodeDecodeError, InvalidData):
        return msgspec.Raw(msgspec.json.encode({"base64": b64encode(body).decode()})), None
