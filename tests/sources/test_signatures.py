"""Signatures of webhooks, checked with published examples and with an independent implementation."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import ConfigurationError
from headrace.sources.signatures import TOLERANCE, InvalidSignature, standard_key, verify

# The example of the tests of the Standard Webhooks libraries:
# https://github.com/standard-webhooks/standard-webhooks/blob/main/libraries/python/tests/test_webhooks.py
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
STANDARD_TIME = 1614265330
STANDARD_BODY = b'{"test": 2432232314}'
STANDARD_SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
STANDARD = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": str(STANDARD_TIME),
    "webhook-signature": STANDARD_SIGNATURE,
}

# From "Testing the webhook payload validation" in
# https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
GITHUB_SECRET = "It's a Secret to Everybody"
GITHUB_BODY = b"Hello, World!"
GITHUB = {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}

NOW = 1_700_000_000.0
SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=100)


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """RFC 2104, implemented literally."""
    key = hashlib.sha256(key).digest() if len(key) > 64 else key
    key = key + bytes(64 - len(key))
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in key) + message).digest()
    return hashlib.sha256(bytes(b ^ 0x5C for b in key) + inner).digest()


def signed(scheme: str, secret: str, body: bytes, now: float) -> dict[str, str]:
    """Return the headers of a signed delivery."""
    stamp = str(int(now))
    match scheme:
        case "standard":
            mac = hmac_sha256(base64.b64decode(secret.removeprefix("whsec_")), f"id-1.{stamp}.".encode() + body)
            signature = f"v1,{base64.b64encode(mac).decode()}"
            return {"webhook-id": "id-1", "webhook-timestamp": stamp, "webhook-signature": signature}
        case "github":
            return {"x-hub-signature-256": f"sha256={hmac_sha256(secret.encode(), body).hex()}"}
        case _:
            return {
                "stripe-signature": f"t={stamp},v1={hmac_sha256(secret.encode(), f'{stamp}.'.encode() + body).hex()}"
            }


def secret_of(scheme: str, text: str) -> str:
    return f"whsec_{base64.b64encode(text.encode()).decode()}" if scheme == "standard" else text


def test_the_second_formulation_says_what_the_inventors_say() -> None:
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    mac = hmac_sha256(key, f"{STANDARD['webhook-id']}.{STANDARD_TIME}.".encode() + STANDARD_BODY)
    assert f"v1,{base64.b64encode(mac).decode()}" == STANDARD_SIGNATURE
    assert f"sha256={hmac_sha256(GITHUB_SECRET.encode(), GITHUB_BODY).hex()}" == GITHUB["x-hub-signature-256"]


def test_the_example_of_standard_webhooks() -> None:
    verify("standard", [STANDARD_SECRET], STANDARD, STANDARD_BODY, STANDARD_TIME)
    verify("standard", [STANDARD_SECRET.removeprefix("whsec_")], STANDARD, STANDARD_BODY, STANDARD_TIME)
    svix = {name.replace("webhook-", "svix-"): value for name, value in STANDARD.items()}
    verify("standard", [STANDARD_SECRET], svix, STANDARD_BODY, STANDARD_TIME)


def test_the_example_of_github() -> None:
    verify("github", [GITHUB_SECRET], GITHUB, GITHUB_BODY, NOW)


@given(scheme=st.sampled_from(["standard", "github", "stripe"]), text=SECRETS, body=st.binary(max_size=200))
def test_signatures_of_an_independent_implementation_are_valid(scheme: str, text: str, body: bytes) -> None:
    secret = secret_of(scheme, text)
    verify(scheme, [secret], signed(scheme, secret, body, NOW), body, NOW)


@given(
    scheme=st.sampled_from(["standard", "github", "stripe"]),
    text=SECRETS,
    body=st.binary(min_size=1, max_size=60),
    data=st.data(),
)
def test_nothing_else_is_valid(scheme: str, text: str, body: bytes, data: st.DataObject) -> None:
    secret = secret_of(scheme, text)
    headers = signed(scheme, secret, body, NOW)
    what = data.draw(st.sampled_from(["body", "secret", *headers]))
    if what == "body":
        place = data.draw(st.integers(0, len(body) - 1))
        body = body[:place] + bytes([body[place] ^ data.draw(st.integers(1, 255))]) + body[place + 1 :]
    elif what == "secret":
        secret = secret_of(scheme, data.draw(SECRETS.filter(lambda other: other != text)))
    else:
        before = headers[what]
        place = data.draw(st.integers(0, len(before) - 1))
        # These variants are equally valid: "t" and "v1" in any order and beside other fields, and
        # GitHub's digits in any case.
        other = data.draw(
            st.sampled_from("0123456789abcdef+/=,.v_-").filter(lambda char: char != before[place].lower())
        )
        headers[what] = before[:place] + other + before[place + 1 :]
    with pytest.raises(InvalidSignature):
        verify(scheme, [secret], headers, body, NOW)


@pytest.mark.parametrize("scheme", ["standard", "github", "stripe"])
def test_a_delivery_without_a_signature_says_which_header_it_needs(scheme: str) -> None:
    names = {"standard": "webhook-signature", "github": "X-Hub-Signature-256", "stripe": "Stripe-Signature"}
    with pytest.raises(InvalidSignature, match=names[scheme]):
        verify(scheme, [secret_of(scheme, "x")], {}, b"{}", NOW)
    whole = signed(scheme, secret_of(scheme, "x"), b"{}", NOW)
    for name in whole:
        for missing in ({**whole, name: ""}, {other: value for other, value in whole.items() if other != name}):
            with pytest.raises(InvalidSignature):
                verify(scheme, [secret_of(scheme, "x")], missing, b"{}", NOW)


@pytest.mark.parametrize("scheme", ["standard", "stripe"])
@pytest.mark.parametrize("early", [-1, 1])
def test_an_old_signature_is_refused_and_so_is_one_from_the_future(scheme: str, early: int) -> None:
    secret = secret_of(scheme, "x")
    headers = signed(scheme, secret, b"{}", NOW)
    verify(scheme, [secret], headers, b"{}", NOW + early * TOLERANCE)
    with pytest.raises(InvalidSignature, match="301 s"):
        verify(scheme, [secret], headers, b"{}", NOW + early * (TOLERANCE + 1))


@pytest.mark.parametrize("stamp", ["", "-1", "1e9", "1700000000.0", "0x10", "9" * 13, "١٧", " 1700000000", "nan"])
@pytest.mark.parametrize("scheme", ["standard", "stripe"])
def test_a_time_is_digits(scheme: str, stamp: str) -> None:
    headers = {
        "webhook-id": "a", "webhook-timestamp": stamp, "webhook-signature": "v1,x",
        "stripe-signature": f"t={stamp},v1=00",
    }  # fmt: skip
    with pytest.raises(InvalidSignature):
        verify(scheme, [secret_of(scheme, "x")], headers, b"", NOW)


def test_any_of_several_signatures_will_do_and_any_of_several_secrets() -> None:
    old, new, other = (secret_of("standard", text) for text in ("old", "new", "other"))
    headers = signed("standard", new, b"{}", NOW)
    headers["webhook-signature"] = f"v1,AAAA v1a,{'A' * 86} v2,x {headers['webhook-signature']} v1,"
    verify("standard", [old, new], headers, b"{}", NOW)
    with pytest.raises(InvalidSignature, match="does not match any secret"):
        verify("standard", [old, other], headers, b"{}", NOW)

    stripe = signed("stripe", "new", b"{}", NOW)["stripe-signature"]
    stamp, right = stripe.split(",")
    verify("stripe", ["old", "new"], {"stripe-signature": f"{stamp}, v1=00, v0=11, {right}"}, b"{}", NOW)
    for refused in (f"{stamp},v0={right[3:]}", f"{stamp},t=1,{right}", f"{right},{right}", "t=,v1=", "="):
        with pytest.raises(InvalidSignature):
            verify("stripe", ["new"], {"stripe-signature": refused}, b"{}", NOW)

    verify("github", ["old", "new"], signed("github", "new", b"{}", NOW), b"{}", NOW)


def test_another_version_of_a_signature_is_no_signature() -> None:
    for given_ in (STANDARD_SIGNATURE.replace("v1,", "v2,"), STANDARD_SIGNATURE.removeprefix("v1,"), "v1"):
        with pytest.raises(InvalidSignature):
            verify(
                "standard", [STANDARD_SECRET], {**STANDARD, "webhook-signature": given_}, STANDARD_BODY, STANDARD_TIME
            )
    with pytest.raises(InvalidSignature):
        verify("github", [GITHUB_SECRET], {"x-hub-signature-256": GITHUB["x-hub-signature-256"][7:]}, GITHUB_BODY, NOW)


def test_a_secret_of_standard_webhooks_is_base64() -> None:
    assert standard_key("whsec_AAEC") == standard_key("AAEC") == b"\0\1\2"
    assert standard_key("whsec_AAE") == standard_key("whsec_AAE=") == b"\0\1"  # some senders leave out the padding
    for text in ("", "whsec_", "whsec_A", "whsec_AA C", "whsec_ä", "hello world", "whsec_AAE==="[:-1] + "*"):
        with pytest.raises(ConfigurationError, match="base64"):
            standard_key(text)
