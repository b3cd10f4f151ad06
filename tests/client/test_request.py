"""Requests and server URLs in their written form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.address import Server
from headrace.client.request import delete, get, iso, patch, post
from headrace.model.errors import ConfigurationError, InvalidInput

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.lists(_TEXT, min_size=1), st.dictionaries(st.sampled_from(["where", "key_pattern"]), st.lists(_TEXT)))
def test_names_and_parameters_arrive_as_they_are(place: list[str], query: dict[str, list[str]]) -> None:
    target = urlsplit(get(*place, **query).target)
    assert [unquote(part) for part in target.path.split("/")[2:]] == place
    given_ = [(name, value) for name, values in query.items() for value in values]
    assert parse_qsl(target.query, keep_blank_values=True, strict_parsing=bool(given_)) == given_


def test_an_empty_name_is_not_taken_for_all_there_are() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        delete("streams", "")


def test_values_that_are_none_are_left_out() -> None:
    assert get("streams", limit=None).target == "/v1/streams"
    assert post("streams", name="x", dedupe=None).content == b'{"name":"x"}'
    assert delete("streams", "x", force=True).target == "/v1/streams/x?force=true"
    assert get("streams").content is None


def test_an_edit_unsets_what_is_none() -> None:
    assert patch("streams", "x", retain_up_to=None).content == b'{"retain_up_to":null}'


def test_times_have_a_zone() -> None:
    assert iso(datetime.fromisoformat("2030-01-01")) == "2030-01-01T00:00:00+00:00"
    assert iso(datetime(2030, 1, 1, tzinfo=UTC)) == "2030-01-01T00:00:00+00:00"
    assert iso(datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == "2030-01-01T00:00:00+01:00"


@pytest.mark.parametrize(
    ("url", "address", "secure", "root"),
    [
        ("http://localhost:7376", ("localhost", 7376), False, ""),
        ("http://localhost", ("localhost", 80), False, ""),
        ("https://example.com", ("example.com", 443), True, ""),
        ("https://example.com:8443/headrace/", ("example.com", 8443), True, "/headrace"),
        ("http://[::1]:7376", ("::1", 7376), False, ""),
    ],
)
def test_the_url_of_a_server(url: str, address: tuple[str, int], secure: bool, root: str) -> None:
    server = Server(url)
    assert (server.address, server.secure, server.root) == (address, secure, root)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:7376", "ftp://x", "http://", "http://x:port", "http://x:0", "http://x:99999", "http://x?a=b", "http://x#y",
     "http://x /", "http://me:geheim@x", "http://x/\r\nEvil: 1", "postgresql://x/y"],
)  # fmt: skip
def test_an_invalid_server_url_is_refused_with_a_valid_example(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"http://localhost:7376|scheme, host") as caught:
        Server(url)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("token", ["a b", "a\r\nEvil: 1", "ä"])
def test_an_invalid_token_is_refused_and_not_printed(token: str) -> None:
    with pytest.raises(ConfigurationError, match="token") as caught:
        Server(token=token)
    assert token not in str(caught.value)
