"""Pages of several databases become one list, in which nothing is missing and nothing comes twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.pages import Page
from headrace.server.databases.targets import Target, names_stream, stream_in, target_of
from headrace.server.merging import merged
from headrace.server.slashes import read_path
from headrace.store.database.references import is_allowed

LISTS = st.dictionaries(st.integers(0, 60), st.integers(0, 2)).map(
    lambda owners: [sorted(item for item, owner in owners.items() if owner == n) for n in range(3)]
)


def _page(items: list[int], limit: int, short: int, after: int | None, before: int | None) -> Page[int]:
    """A page as a database returns it. It may end early, because its items are large."""
    most = max(limit - short, 1)
    if before is not None:
        found = [item for item in items if item < before]
        return Page(found[-most:], more=len(found) > most)
    found = [item for item in items if after is None or item > after]
    return Page(found[:most], more=len(found) > most)


@given(LISTS, st.integers(1, 7), st.tuples(*[st.integers(0, 5)] * 3))
def test_pages_of_several_databases_are_one_list(
    lists: list[list[int]], limit: int, short: tuple[int, int, int]
) -> None:
    everything = sorted(item for one in lists for item in one)
    seen: list[int] = []
    after: int | None = None
    while True:
        pages = [_page(one, limit, less, after, None) for one, less in zip(lists, short, strict=True)]
        found = merged(pages, lambda item: item, limit)
        assert len(found) <= limit
        seen += found
        if not found.more:
            break
        assert found
        after = found[-1]
    assert seen == everything
    back: list[int] = []
    before = 100
    while True:
        pages = [_page(one, limit, less, None, before) for one, less in zip(lists, short, strict=True)]
        found = merged(pages, lambda item: item, limit, backwards=True)
        back = [*found, *back]
        if not found.more:
            break
        before = found[0]
    assert back == everything


@pytest.mark.parametrize(
    ("path", "raw", "target"),
    [
        ("/v1/streams/visits/messages", None, Target("stream", "visits")),
        ("/api/webhook/shop", None, Target("source", "shop")),
        ("/v1/http_pull_consumers/a/b/ack", b"/x/v1/http_pull_consumers/a%2Fb/ack", Target("consumer", "a/b")),
        ("/v1/http-consumers/visits:x", None, Target("consumer", "visits:x")),
        ("/v1/streams", None, None),
        ("/v1/consumers", None, None),
        ("/v1/tokens/x", None, None),
        ("/health", None, None),
    ],
)
def test_a_path_says_what_a_request_is_about(path: str, raw: bytes | None, target: Target | None) -> None:
    assert target_of(read_path({"path": path, "raw_path": raw})) == target


def test_a_new_object_goes_to_the_database_of_the_stream_in_its_body() -> None:
    assert names_stream("POST", "/v1/sources")
    assert not names_stream("GET", "/v1/sources")
    assert stream_in(b'{"stream": "visits", "x": 1}') == Target("stream", "visits")
    assert stream_in(b'{"messages": [{"stream": "visits", "key": "a"}, {"stream": "x"}]}') == Target("stream", "visits")
    assert [stream_in(body) for body in (b"", b"{}", b"[1]", b'{"stream": 7}', b"\xff")] == [None] * 5


def test_references_are_allowed_by_name_or_by_their_beginning() -> None:
    allowed = ("env:EU", "file:/run/secrets/*")
    assert is_allowed("env:EU", allowed)
    assert is_allowed("file:/run/secrets/us", allowed)
    for other in ("env:EUX", "env:PATH", "file:/run/secrets/../shadow", "file:/run/secrets", "file:/run/other"):
        assert not is_allowed(other, allowed)
