"""Requests and server URLs in their written form."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.address import Server
from headrace.client.call import Argument, Body, Call
from headrace.client.request import Request, iso, path_of, query_of
from headrace.model.errors import ConfigurationError, InvalidInput

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text not in (".", ".."))


@given(st.lists(_TEXT, min_size=1), st.dictionaries(st.sampled_from(["where", "key_pattern"]), st.lists(_TEXT)))
def test_names_and_parameters_arrive_as_they_are(names: list[str], query: dict[str, list[str]]) -> None:
    template = "/v1" + "".join(f"/{{n{number}}}" for number in range(len(names)))
    path = path_of(template, {f"n{number}": name for number, name in enumerate(names)})
    target = urlsplit(Request(method="GET", path=path, query=query_of(query)).target)
    assert [unquote(part) for part in target.path.split("/")[2:]] == names
    given_ = [(name, value) for name, values in query.items() for value in values]
    assert parse_qsl(target.query, keep_blank_values=True, strict_parsing=bool(given_)) == given_


def test_a_name_that_would_name_another_object_is_refused() -> None:
    """Nothing names all objects. A proxy resolves dots, so that `…/consumers/..` would be the stream."""
    for name in ("", ".", ".."):
        with pytest.raises(InvalidInput, match=r"The name is .* another object"):
            Call("DELETE", "/v1/streams/orders/consumers/{name}").request(name)
    assert Call("DELETE", "/v1/streams/{name}").request("...").path == "/v1/streams/..."


def test_arguments_that_are_none_or_false_are_left_out() -> None:
    listing = Call("GET", "/v1/streams/{stream}/messages", Argument("limit", None), Argument("newest", False))
    assert listing.request("x").target == "/v1/streams/x/messages"
    assert listing.request("x").content is None
    assert listing.request("x", limit=3, newest=True).target == "/v1/streams/x/messages?limit=3&newest=true"
    seeking = Call("POST", "/v1/seek", Argument("to"), Argument("dry_run", False))
    assert seeking.request(0).content == b'{"to":0}'


def test_arguments_are_converted_and_named_as_in_the_api() -> None:
    call = Call("POST", "/v1/x", Argument("wait", 1.0, sent_as="wait_ms", convert=lambda wait: int(wait * 1000)))
    assert call.request().body == {"wait_ms": 1000}
    assert call.request(2.0).body == {"wait_ms": 2000}
    pause = Call("POST", "/v1/x", Argument("until", None), Argument("ids", None), constants={"strict": True})
    assert pause.request(datetime(2030, 1, 1, tzinfo=UTC), (1, 2)).body == {
        "until": "2030-01-01T00:00:00+00:00",
        "ids": [1, 2],
        "strict": True,
    }


def test_wrong_arguments_are_refused() -> None:
    call = Call("POST", "/v1/streams/{stream}/seek", Argument("to"))
    for args, kwargs in [((), {"to": 1}), (("x",), {}), (("x", 1, 2), {}), (("x", 1), {"other": 2})]:
        with pytest.raises(TypeError):
            call.request(*args, **kwargs)


def test_the_path_for_all_is_that_of_no_name() -> None:
    call = Call("GET", "/v1/streams/{stream}/consumers", path_for_all="/v1/consumers")
    assert (call.request().path, call.request("x").path) == ("/v1/consumers", "/v1/streams/x/consumers")
    with pytest.raises(InvalidInput, match="empty"):
        call.request("")


def test_an_edit_unsets_what_is_none() -> None:
    edit = Call("PATCH", "/v1/streams/{name}", Body("changes", dict))
    assert edit.request("x", retain_up_to=None, name="y").content == b'{"retain_up_to":null,"name":"y"}'


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


def test_the_url_of_a_database_is_refused_with_the_option_that_takes_it() -> None:
    with pytest.raises(
        ConfigurationError, match=r"is not valid.*A database is given as --database or HEADRACE_DATABASE"
    ):
        Server("postgresql://shop@localhost/shop")
