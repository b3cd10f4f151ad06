"""The oldest document of the message stream, with each of its examples and promises, run with the standard library."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.server.stdlib_client import Api, Streams

names = (f"mystream{number}" for number in itertools.count())

SHOES, PANTS = {"product": "Shoes"}, {"product": "Pants"}


@pytest.fixture
def api(served_url: str) -> Api:
    return Api(served_url)


@pytest.fixture(params=["/v1", "/api"])
def streams(api: Api, request: pytest.FixtureRequest) -> Streams:
    return Streams(api, request.param)


@pytest.fixture
def name() -> str:
    return next(names)


def keys(received: list[Any]) -> list[str]:
    return [one["message"]["key"] for one in received]


def test_the_four_requests_of_the_document_work_as_they_stand(api: Api) -> None:
    api.post("/v1/streams", {"name": "mystream"})
    api.post("/v1/streams/mystream/messages", {"key": "orders.us.cus_a.order_1", "data": {"product": "Shoes"}})
    api.post("/v1/streams/mystream/messages", {"key": "orders.eu.cus_b.order_2", "data": {"product": "Pants"}})
    consumer = api.post(
        "/v1/streams/mystream/consumers",
        {"name": "us_orders", "filter": "orders.us.>", "ack_wait_ms": 30000, "max_ack_pending": 100, "max_deliver": 10},
    )
    assert (consumer["name"], consumer["ack_wait_ms"], consumer["max_ack_pending"]) == ("us_orders", 30000, 100)
    received = api.post("/v1/streams/mystream/consumers/us_orders/messages", {"batch_size": 10})["data"]
    assert keys(received) == ["orders.us.cus_a.order_1"]
    assert received[0]["message"]["data"] == SHOES
    assert received[0]["message"]["seq"] == 1
    acked = api.post("/v1/streams/mystream/consumers/us_orders/ack", {"ack_ids": [received[0]["ack_id"]]})
    assert acked == {"success": True}
    assert api.post("/v1/streams/mystream/consumers/us_orders/messages", {"batch_size": 10})["data"] == []


def test_a_token_is_no_hindrance_where_none_is_configured(served_url: str, name: str) -> None:
    streams = Streams(Api(served_url, token="whatever"))
    assert streams.create(name)["name"] == name


def test_a_stream_takes_one_message_or_many(streams: Streams, name: str) -> None:
    streams.create(name)
    assert streams.send(name, "a", {"n": 1}) == {"data": {"published": 1}}
    assert streams.send_many(name, ("b", {"n": 2}), ("c", "a bare string"), ("d", [1, None])) == {
        "data": {"published": 3}
    }
    streams.add_consumer(name, "all")
    received = streams.receive(name, "all", batch_size=10)
    assert [one["message"]["data"] for one in received] == [{"n": 1}, {"n": 2}, "a bare string", [1, None]]


def test_ids_stand_where_names_do(streams: Streams, name: str) -> None:
    stream = streams.create(name)["id"]
    consumer = streams.add_consumer(stream, "all")["id"]
    streams.send(stream, "a", 1)
    received = streams.receive(stream, consumer)
    assert keys(received) == ["a"]
    assert streams.ack(name, "all", received) == {"success": True}
    assert streams.receive(name, "all") == []


def test_wildcards_match_one_token_or_the_rest(streams: Streams, name: str) -> None:
    streams.create(name)
    streams.send_many(
        name, ("orders.cus_a.ord_1", 1), ("orders.cus_b.ord_2", 2), ("orders.cus_a.ord_3", 3), ("orders.cus_a", 4)
    )
    streams.add_consumer(name, "one_customer", filter="orders.cus_a.*")
    streams.add_consumer(name, "every_order", filter_key_pattern="orders.>")
    assert keys(streams.receive(name, "one_customer", batch_size=10)) == ["orders.cus_a.ord_1", "orders.cus_a.ord_3"]
    assert len(streams.receive(name, "every_order", batch_size=10)) == 4


def test_each_consumer_gets_everything(streams: Streams, name: str) -> None:
    streams.create(name)
    for consumer in ("ship", "bill"):
        streams.add_consumer(name, consumer)
    streams.send(name, "a", 1)
    assert keys(streams.receive(name, "ship")) == keys(streams.receive(name, "bill")) == ["a"]


def test_a_message_is_delivered_once_within_its_visibility_timeout_and_again_after(streams: Streams, name: str) -> None:
    streams.create(name)
    streams.add_consumer(name, "all", ack_wait_ms=1000)
    streams.send(name, "a", 1)
    first = streams.receive(name, "all", batch_size=10)
    assert streams.receive(name, "all", batch_size=10) == []
    again = streams.receive(name, "all", batch_size=10, wait_for=10_000)
    assert keys(again) == ["a"]
    assert (first[0]["message"]["attempt"], again[0]["message"]["attempt"]) == (1, 2)
    assert streams.ack(name, "all", first) == {"success": True}, "a late ack is harmless"
    assert streams.ack(name, "all", again) == {"success": True}
    assert streams.receive(name, "all", wait_for=1500) == []


def test_the_next_message_of_a_key_waits_for_the_one_before(streams: Streams, name: str) -> None:
    streams.create(name)
    streams.add_consumer(name, "all")
    streams.send_many(name, ("a", 1), ("a", 2), ("b", 3))
    first = streams.receive(name, "all", batch_size=10)
    assert [one["message"]["data"] for one in first] == [1, 3]
    assert streams.receive(name, "all", batch_size=10) == []
    streams.ack(name, "all", first[:1])
    assert [one["message"]["data"] for one in streams.receive(name, "all", batch_size=10)] == [2]


def test_with_one_message_per_key_the_latest_is_withheld_until_the_one_before_is_settled(
    streams: Streams, name: str
) -> None:
    assert streams.create(name, one_message_per_key=True)["one_message_per_key"] is True
    streams.add_consumer(name, "all")
    streams.send(name, "a", "first")
    first = streams.receive(name, "all")
    streams.send(name, "a", "second")
    streams.send(name, "a", "third")
    assert streams.receive(name, "all") == []
    streams.nack(name, "all", first)
    assert [one["message"]["data"] for one in streams.receive(name, "all", batch_size=10)] == ["third"]


def test_nacked_messages_are_redelivered_at_once(streams: Streams, name: str) -> None:
    streams.create(name)
    streams.add_consumer(name, "all")
    streams.send(name, "a", 1)
    assert streams.nack(name, "all", streams.receive(name, "all")) == {"success": True}
    assert [one["message"]["attempt"] for one in streams.receive(name, "all")] == [2]


def test_a_consumer_that_comes_later_plays_through_the_history(api: Api, streams: Streams, name: str) -> None:
    streams.create(name)
    streams.send_many(name, *((f"k{number}", number) for number in range(5)))
    streams.add_consumer(name, "late", deliver_policy="all")
    streams.add_consumer(name, "new", deliver_policy="new")
    late = streams.receive(name, "late", batch_size=10)
    assert [one["message"]["data"] for one in late] == [0, 1, 2, 3, 4]
    assert streams.receive(name, "new", batch_size=10) == []
    streams.ack(name, "late", late)
    api.post(f"/v1/streams/{name}/consumers/late/seek", {"to": late[2]["message"]["seq"]})
    assert [one["message"]["data"] for one in streams.receive(name, "late", batch_size=10)] == [2, 3, 4]


def test_max_ack_pending_bounds_what_is_out(streams: Streams, name: str) -> None:
    streams.create(name)
    streams.add_consumer(name, "all", max_ack_pending=2)
    streams.send_many(name, ("a", 1), ("b", 2), ("c", 3))
    first = streams.receive(name, "all", batch_size=10)
    assert keys(first) == ["a", "b"]
    assert streams.receive(name, "all") == []
    streams.ack(name, "all", first[:1])
    assert keys(streams.receive(name, "all", batch_size=10)) == ["c"]


def test_max_deliver_ends_the_deliveries(api: Api, streams: Streams, name: str) -> None:
    streams.create(name)
    streams.add_consumer(name, "all", max_deliver=2)
    streams.send(name, "a", 1)
    for _ in range(2):
        streams.nack(name, "all", streams.receive(name, "all"))
    assert streams.receive(name, "all") == []
    letters = api.get(f"/v1/streams/{name}/consumers/all/dead_letters")["data"]
    assert [letter["key"] for letter in letters] == ["a"]


def test_a_missing_object_is_404_and_the_error_names_it(api: Api, streams: Streams, name: str) -> None:
    streams.create(name)
    for path in ("/v1/streams/nowhere/messages", f"/v1/streams/{name}/consumers/nobody/receive"):
        answer = api.refused("POST", path, {"key": "a", "data": 1} if "nowhere" in path else {})
        assert answer.status == 404
        assert answer.body["summary"]


def test_a_stream_of_a_name_that_is_taken_is_409(api: Api, streams: Streams, name: str) -> None:
    streams.create(name)
    assert api.refused("POST", "/v1/streams", {"name": name}).status == 409
