"""Valid and invalid settings of a push consumer."""

from __future__ import annotations

import base64

import pytest

from headrace.model.errors import ConfigurationError
from headrace.model.push import Push

URL = "https://shop.example/hook"
KEY = base64.b64encode(b"k" * 24).decode()


@pytest.mark.parametrize(
    "url",
    ["http://a", "https://a:8443/x?y=z", "http://[2606:4700::1]/", "http://10.0.0.1/", "https://grün.example/"],
)
def test_a_url_may_be(url: str) -> None:
    assert Push(url=url).url == url


@pytest.mark.parametrize(
    "url",
    ["", "a", "/hook", "ftp://a/", "file:///etc/passwd", "http://", "http:///x", "http://a:0/", "http://a:99999/", "http://a:b/",
     "http://[::1/", "http://a b/", "http://a/\nb", "http://a/" + "x" * 3000, "http://user@a/", "http://user:word@a/"],
)  # fmt: skip
def test_a_url_may_not_be(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Push(url=url)
    assert "word" not in str(refused.value).replace("password", "")


@pytest.mark.parametrize(
    "headers",
    [{"a b": "x"}, {"": "x"}, {"x": "a\r\nb"}, {"x": "\0"}, {"Webhook-Signature": "x"}, {"webhook-id": "x"},
     {"Content-Length": "5"}, {"transfer-encoding": "chunked"}, {"Host": "a"}, {"x": "y" * 9000}, {f"x-{n}": "" for n in range(51)}],
)  # fmt: skip
def test_headers_that_may_not_be(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        Push(url=URL, headers=headers)


@pytest.mark.parametrize("size", [24, 32, 64])
def test_a_secret_is_a_prefix_and_base64(size: int) -> None:
    push = Push(url=URL, secret="whsec_" + base64.b64encode(b"k" * size).decode())
    assert push.key == b"k" * size


@pytest.mark.parametrize(
    "secret", ["", "whsec_", KEY, "whsec_" + KEY[:-3], "whsec_" + KEY[:20], "whsec_" + KEY * 5, "whsec_é" + KEY]
)
def test_an_invalid_secret_is_not_disclosed(secret: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Push(url=URL, secret=secret)
    assert KEY[:8] not in str(refused.value)


def test_a_push_is_shown_without_its_secret() -> None:
    shown = repr(Push(url=URL, secret="whsec_" + KEY, timeout=5))
    assert shown == f"Push(url={URL!r}, headers={{}}, secret='…', timeout=5, batch=None, concurrency=(1, 64))"


@pytest.mark.parametrize(
    "settings",
    [{"timeout": 0.01}, {"timeout": 301}, {"batch": 0}, {"batch": 1001}, {"concurrency": (0, 1)}, {"concurrency": (2, 1)},
     {"concurrency": (1, 1001)}],
)  # fmt: skip
def test_bounds_are_kept(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="must be from"):
        Push(url=URL, **settings)  # type: ignore[arg-type]
