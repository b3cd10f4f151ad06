"""Messages of a key over HTTP, with an index of keys and without one."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import store
from headrace.server.routes import messages as routes
from headrace.store.messages.search import search
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

PATH = "/streams/orders/messages"
RARE = "payroll.adp.c1.employee.7"


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a search examines 100 messages."""
    monkeypatch.setitem(search.__kwdefaults__, "examine", 100)
    monkeypatch.setitem(search.__kwdefaults__, "seconds", 60.0)


async def _fill(api: Api, **settings: Any) -> None:
    await api.post("/streams", {"name": "orders", **settings}, 201)
    await api.publish((RARE, "rare"), *((f"other.{number}", number) for number in range(450)))


async def test_a_list_without_an_index_is_read_in_bounded_pages(api: Api) -> None:
    await _fill(api)
    found, sizes, query = [], [], {"filter": "payroll.adp.*.employee.7", "sort": "seq_desc"}
    while True:
        answer = await api.get(PATH, **query)
        found += [message["data"] for message in answer["data"]]
        sizes.append(len(answer["data"]))
        if answer.get("next") is None:
            break
        query["after"] = answer["next"]
    assert (found, sizes) == (["rare"], [0, 0, 0, 0, 1])
    upwards = await api.get(PATH, filter="other.449", start_seq=2)
    assert (upwards["data"], upwards["next"]) == ([], 101)
    back = await api.get(PATH, filter="other.1", before=402)
    assert (back["data"], back["prev"]) == ([], 302)
    assert "next" not in back


async def test_a_list_with_an_index_has_all_at_once(api: Api) -> None:
    await _fill(api, index_keys=True)
    answer = await api.get(PATH, filter="payroll.adp.*.employee.7", sort="seq_desc")
    assert ([message["data"] for message in answer["data"]], answer.get("next")) == (["rare"], None)


@pytest.mark.parametrize("index_keys", [False, True])
async def test_the_latest_message_of_a_key_is_found_however_far_it_is(api: Api, index_keys: bool) -> None:
    await _fill(api, index_keys=index_keys)
    assert (await api.get(f"{PATH}/{RARE}"))["data"] == "rare"
    assert (await api.get(f"{PATH}/{RARE}/consumer_info"))["data"] == []
    assert (await api.refused("GET", f"{PATH}/none", status=404))["code"] == "unknown_key"
    assert (await api.refused("GET", f"{PATH}/none/consumer_info", status=404))["code"] == "unknown_key"
    assert (await api.refused("GET", f"{PATH}/{RARE}", status=404, before=1))["code"] == "unknown_key"


async def test_a_search_for_a_key_that_takes_long_says_where_to_continue(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _fill(api)
    monkeypatch.setattr(routes, "SEARCH_TIME", -1.0)
    for key, end in ((RARE, 200), ("none", 404)):
        before: dict[str, int] = {}
        for rest in (352, 252, 152, 52):
            answer = await api.answer("GET", f"{PATH}/{key}", **before)
            assert (answer.status_code, answer.json()["code"]) == (409, "not_reached")
            assert f"before={rest}" in answer.json()["summary"]
            before = {"before": answer.json()["before"]}
            assert before == {"before": rest}
        assert (await api.answer("GET", f"{PATH}/{key}", **before)).status_code == end


async def test_an_append_stream_gets_its_index_later(api: Api) -> None:
    await _fill(api)
    changed = await api.call("PATCH", "/streams/orders", {"index_keys": True})
    assert changed["index_keys"] is True
    assert not await store.adjust_key_indexes(api.server.app.database)
    answer = await api.get(PATH, filter=RARE, sort="seq_desc")
    assert ([message["data"] for message in answer["data"]], answer.get("next")) == (["rare"], None)
