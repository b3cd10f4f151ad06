"""Verifies webhook signatures in the three schemes that most senders use. Each is a HMAC-SHA256 over
the body, and over a timestamp and an id where the scheme has them. Nothing else of a delivery is
authentic: neither its other headers nor its URL.

- Standard Webhooks:
  https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
  (its headers may also begin with `svix-`, their prefix before standardisation)
- GitHub: https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
- Stripe: https://docs.stripe.com/webhooks#verify-manually
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headrace.model.errors import ConfigurationError, InvalidInput

TOLERANCE = 300
"""Largest allowed difference in seconds between a signed time and the local clock. The store remembers the message ids
for twice as long at least, so that no delivery is accepted twice.
"""

TIMED = frozenset(("standard", "stripe"))
"""The schemes whose signatures cover a time."""

_PREFIX = "whsec_"
_BOM = b"\xef\xbb\xbf"
_TIME = re.compile(r"[0-9]{1,12}")


class InvalidSignature(InvalidInput):
    """Raised for a delivery with a signature that is missing, too old, or wrong."""


def verify(scheme: str, secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> str | None:
    """Check that one of the secrets has signed the delivery. Returns the sender's id of the delivery if
    the signature covers one, otherwise None.

    Args:
        scheme: `standard`, `github` or `stripe`.
        headers: by lower-case name.
        body: the bytes as received.
        now: seconds since 1970.

    Raises:
        InvalidSignature: the signature is missing, too old or wrong.
    """
    match scheme:
        case "standard":
            return _verify_standard(secrets, headers, body, now)
        case "github":
            _verify_github(secrets, headers, body)
            return None  # the signature does not cover X-GitHub-Delivery
        case "stripe":
            _verify_stripe(secrets, headers, body, now)
            return _event_id(body)
        case _:
            raise ValueError(f"There is no signature scheme {scheme!r}.")


def standard_key(secret: str) -> bytes:
    """Return the key in a secret of Standard Webhooks. Raises `ConfigurationError`."""
    text = secret.removeprefix(_PREFIX).rstrip("=")
    try:
        key = b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (NotBase64, ValueError):
        key = b""
    if not key:
        raise ConfigurationError(
            "The secret is not a Standard Webhooks secret, which is 'whsec_' and base64. Copy the whole secret from the sender."
        )
    return key


def _verify_standard(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> str:
    prefix = "webhook" if "webhook-signature" in headers else "svix"
    message_id, timestamp, signatures = (headers.get(f"{prefix}-{part}") for part in ("id", "timestamp", "signature"))
    if not (message_id and timestamp and signatures):
        raise InvalidSignature(
            "The delivery is not signed. It needs the headers webhook-id, webhook-timestamp and webhook-signature."
        )
    _check_time(timestamp, now)
    signed = f"{message_id}.{timestamp}.".encode("latin-1")  # latin-1 restores the bytes of the headers
    _check_any(
        (b"v1," + b64encode(_hmac(standard_key(secret), signed, body)) for secret in secrets),
        [one for one in signatures.split(" ") if one.startswith("v1,")],
    )
    return message_id


def _verify_github(secrets: Sequence[str], headers: Mapping[str, str], body: bytes) -> None:
    signatures = headers.get("x-hub-signature-256")
    if not signatures:
        raise InvalidSignature(
            "The delivery is not signed. It needs the header X-Hub-Signature-256. Set a secret at the sender."
        )
    _check_any((b"sha256=" + _hmac(secret.encode(), body).hex().encode() for secret in secrets), [signatures.lower()])


def _verify_stripe(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: float) -> None:
    parts = [part.strip().partition("=") for part in headers.get("stripe-signature", "").split(",")]
    timestamps = [value for name, _, value in parts if name == "t"]
    signatures = [value for name, _, value in parts if name == "v1"]
    if len(timestamps) != 1 or not signatures:
        raise InvalidSignature(
            "The delivery is not signed. It needs the header Stripe-Signature with a time t and a signature v1."
        )
    _check_time(timestamps[0], now)
    signed = f"{timestamps[0]}.".encode("latin-1")
    _check_any((_hmac(secret.encode(), signed, body).hex().encode() for secret in secrets), signatures)


class _Event(msgspec.Struct):
    id: str


def _event_id(body: bytes) -> str | None:
    """Return the id in a signed body that is a JSON object, or None. The content type is not asked,
    because it is not signed.
    """
    try:
        return msgspec.json.decode(body.removeprefix(_BOM), type=_Event).id or None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _check_time(timestamp: str, now: float) -> None:
    if not _TIME.fullmatch(timestamp):
        raise InvalidSignature(f"The signature's time {timestamp[:40]!r} is not a number of seconds since 1970.")
    if abs(now - int(timestamp)) > TOLERANCE:
        raise InvalidSignature(
            f"The signature's time is {abs(now - int(timestamp)):.0f} s {'ago' if now > int(timestamp) else 'ahead'}, and {TOLERANCE} s are"
            " allowed. An old delivery was sent again, or a clock is wrong."
        )


def _check_any(expected: Iterable[bytes], signatures: Sequence[str]) -> None:
    """Check that one signature is by one secret. A sender signs with both secrets while a secret is
    being changed. All pairs are compared, even after a match.
    """
    candidates = [one.encode("latin-1", "replace") for one in signatures]
    matching = [hmac.compare_digest(wanted, candidate) for wanted in expected for candidate in candidates]
    if not any(matching):
        raise InvalidSignature(
            "The signature does not match any secret of this source. Compare the secret with the sender's."
        )


def _hmac(key: bytes, *parts: bytes) -> bytes:
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for piece in parts:
        digest.update(piece)
    return digest.digest()
