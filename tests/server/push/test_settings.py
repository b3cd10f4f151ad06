"""Valid and invalid settings of a push consumer."""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL as URLOfClient  # noqa: N811

from headrace.model.errors import ConfigurationError
from headrace.model.push import Push

URL = "https://shop.example/hook"
KEY = base64.b64encode(b"k" * 24).decode()


@pytest.mark.parametrize(
    "url",
    ["http://a", "https://a:8443/x?y=z", "http://[2606:4700::1]/", "http://10.0.0.1/", "https://grün.example/",
     "https://a.example./", "https://a_b.example/", "https://XN--GRN-HOA.example/", "https://☃.example/ü?ü=%C3%BC", "HTTPS://A:443/",
     f"https://{'a' * 63}.example/", "http://a/b%20c?d=[e]"],
)  # fmt: skip
def test_a_url_may_be(url: str) -> None:
    assert Push(url=url).url == url
    assert URLOfClient(url).raw_host


@pytest.mark.parametrize(
    "url",
    ["", "a", "/hook", "ftp://a/", "file:///etc/passwd", "http://", "http:///x", "http://a:0/", "http://a:99999/", "http://a:b/",
     "http://[::1/", "http://a b/", f"http://{'a' * 64}.example/", f"http://{'a.' * 128}/", f"http://{'a' * 250}.example/",
     f"http://{'ü' * 63}.example/", "http://a..b/", "http://.a/", "http://../", "http://./", "http://xn--ü/", "http://%61.example/",
     "http://a%00b/", "http://a%2eb/", "http://[::1%25eth0]/", "http://[::1%eth0]/", "http://[v1.a]/", "http://[::1]a/",
     "http://a[::1]/", "http://a\\@b/", "http:\\\\a/", "http://a\\b/", "http://a/\\", "http://a/\t", "http://a/\u2028", "http://a/\x85",
     "http://a/\u202e", "http://a\u200bb/", "http://@a/", "http://:@a/", "http://a:-1/", "http://a:+80/", "http://a:８０/",
     "http://a!b/", "http://-/", "http://a,b/", "http://℀.example/", "http://a:80:80/", "http://\ud800/", "http://a/\ud800", "HTTP:a",
     "http:///a", "http:a/", "https://a;b/", "http://a/\nb", "http://a/" + "x" * 3000, "http://user@a/", "http://user:word@a/"],
)  # fmt: skip
def test_a_url_may_not_be(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Push(url=url)
    assert "word" not in str(refused.value).replace("password", "")


@given(
    st.text(st.sampled_from("a1.-_:/@[]%?#\\ü。ß☃é٣٤x"), max_size=80), st.sampled_from(["http://", "https://", "http:"])
)
@example("1.2.3", "http://")
def test_a_url_that_is_accepted_is_one_for_the_client(text: str, scheme: str) -> None:
    try:
        url = Push(url=scheme + text).url
    except ConfigurationError:
        return
    client = URLOfClient(url)
    assert client.raw_host
    assert client.user is client.password is None


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
    assert shown == (
        "Push(url='https://shop.example/…', headers={}, secret='…', timeout=5, batch=None, concurrency=(1, 64),"
        " shape='message')"
    )


@pytest.mark.parametrize(
    "settings",
    [{"timeout": 0.01}, {"timeout": 301}, {"batch": 0}, {"batch": 1001}, {"concurrency": (0, 1)}, {"concurrency": (2, 1)},
     {"concurrency": (1, 1001)}],
)  # fmt: skip
def test_bounds_are_kept(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="must be from"):
        Push(url=URL, **settings)  # type: ignore[arg-type]
