"""Valid and invalid settings of a webhook source."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.model.errors import ConfigurationError
from headrace.sources.webhook import WebhookSpec

REFUSED = [
    ({"name": ""}, "1 to 48"),
    ({"name": "GitHub"}, "lower-case"),
    ({"name": "a.b"}, "lower-case"),
    ({"name": "-a"}, "first"),
    ({"name": "a" * 49}, "48"),
    ({"key": "{nope}"}, "key template"),
    ({"signature": "hmac", "secrets": ("x",)}, "'standard', 'github' or 'stripe'"),
    ({"signature": "github"}, "needs the secret"),
    ({"secrets": ("x",)}, "set signature to"),
    ({"signature": "github", "secrets": ("",)}, "1 to 1,024 characters"),
    ({"signature": "github", "secrets": ("x" * 1025,)}, "1 to 1,024 characters"),
    ({"signature": "github", "secrets": ("x\n",)}, "printable"),
    ({"signature": "github", "secrets": tuple("abcdefghi")}, "more than 8 secrets"),
    ({"signature": "standard", "secrets": ("not base64!",)}, "base64"),
    ({"keep_headers": ("X-Upper",)}, "lower case"),
    ({"keep_headers": ("a b",)}, "not the name of a header"),
    ({"keep_headers": ("",)}, "not the name of a header"),
    ({"keep_headers": tuple(f"x-{n}" for n in range(33))}, "more than 32"),
    ({"max_body": 0}, "from 1"),
    ({"max_body": 100_000_001}, "from 1 byte to 100 MB, not 100000001"),
]


@pytest.mark.parametrize(("settings", "expected"), REFUSED)
def test_invalid_settings_are_refused_in_a_sentence(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected) as refused:
        WebhookSpec(**{"name": "hook", "stream": "orders", **settings})
    assert "\n" not in str(refused.value)


def test_a_source_is_the_same_when_it_comes_back_from_the_store() -> None:
    spec = WebhookSpec(
        name="hook", stream="orders", key="a.{body.x}", signature="stripe", secrets=("whsec_1", "whsec_2"),
        keep_headers=("x-a",), max_body=5,
    )  # fmt: skip
    assert WebhookSpec.stored("hook", "orders", spec.settings()) == spec
    assert WebhookSpec.stored("hook", "orders", {}) == WebhookSpec(name="hook", stream="orders")


def test_settings_stored_by_an_older_version_are_shown_with_defaults() -> None:
    assert WebhookSpec.shown({"secrets": ["…"], "signature": "standard"}) == {
        "key": "{name}.{sha256}", "signature": "standard", "secrets": ["…"], "keep_headers": [], "max_body": None,
    }  # fmt: skip


def test_its_repr_contains_no_secret() -> None:
    spec = WebhookSpec(name="hook", stream="orders", signature="github", secrets=("hush",))
    assert "hush" not in repr(spec)
    assert "hush" not in f"{[spec]}"
