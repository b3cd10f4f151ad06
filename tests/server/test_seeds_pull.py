"""The documents of pull consumers and of their messages, executed with the standard library."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from tests.server.stdlib_client import Answer, Api, PullConsumer, Streams

names = (f"pull{number}" for number in itertools.count())

CHANI = {"id": 2, "name": "Chani", "title": "Fremen Warrior", "spice_allocation": 500, "is_sayyadina": True}


@pytest.fixture
def api(served_url: str) -> Api:
    return Api(served_url, token="your-token")


@pytest.fixture
def consumer(api: Api) -> PullConsumer:
    """A pull consumer with a separate stream."""
    return made(api, next(names))


def made(api: Api, name: str, **settings: Any) -> PullConsumer:
    Streams(api).create(name)
    Streams(api).add_consumer(name, name, **settings)
    return PullConsumer(api, name)


def send(api: Api, consumer: PullConsumer, *data: Any) -> None:
    stream = consumer.name
    Streams(api).send_many(stream, *((f"members.{number}", one) for number, one in enumerate(data)))


def test_receive_ack_and_nack_work_as_the_document_has_them(api: Api, consumer: PullConsumer) -> None:
    send(api, consumer, CHANI, {"id": 3})
    at = f"/api/http_pull_consumers/{consumer.name}"
    received = api.get(f"{at}/receive?batch_size=10")["data"]
    assert [one["record"] for one in received] == [CHANI, {"id": 3}]
    assert api.get(f"{at}/receive?batch_size=10")["data"] == [], "they are not visible to others"
    tokens = [one["ack_token"] for one in received]
    assert api.post(f"{at}/ack", {"ack_tokens": tokens[:1]}) == {"success": True}
    assert api.post(f"{at}/nack", {"ack_tokens": tokens[1:]}) == {"success": True}
    assert [one["record"] for one in api.get(f"{at}/receive?batch_size=10")["data"]] == [{"id": 3}]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("word", ["ack_ids", "ack_tokens"])
def test_each_way_to_ask_and_each_word_does(api: Api, method: str, word: str) -> None:
    consumer = made(api, next(names))
    send(api, consumer, CHANI)
    received = consumer.receive(10, method=method)
    assert received[0]["ack_id"] == received[0]["ack_token"]
    assert consumer.nack([received[0]["ack_id"]], word) == {"success": True}
    again = consumer.receive(10, method=method)
    assert consumer.ack([again[0]["ack_id"]], word) == {"success": True}
    assert consumer.receive(10, method=method) == []


def test_metadata_names_the_consumer(api: Api, consumer: PullConsumer) -> None:
    send(api, consumer, CHANI)
    metadata = consumer.receive()[0]["metadata"]
    assert metadata["consumer"]["name"] == consumer.name
    assert len(metadata["consumer"]["id"]) == 36
    assert {"table_schema", "table_name"} <= metadata.keys()


@pytest.mark.parametrize(
    ("action", "changes"),
    [("insert", None), ("update", {"title": "Duke of Arrakis", "spice_allocation": 1000}), ("delete", None)],
)
def test_a_captured_change_comes_in_its_shape(api: Api, action: str, changes: Any) -> None:
    consumer = made(api, next(names))
    change = {
        "record": CHANI, "changes": changes, "action": action,
        "metadata": {"table_schema": "public", "table_name": "members", "commit_timestamp": "2023-10-15T14:30:00Z"},
    }  # fmt: skip
    send(api, consumer, change)
    [received] = consumer.receive()
    assert received.keys() == {"ack_id", "ack_token", "record", "changes", "action", "metadata"}
    assert (received["record"], received["changes"], received["action"]) == (CHANI, changes, action)
    assert received["metadata"]["table_name"] == "members"
    assert received["metadata"]["commit_timestamp"] == "2023-10-15T14:30:00Z"
    assert received["metadata"]["consumer"]["name"] == consumer.name


def test_a_captured_row_has_no_changes_and_no_action(api: Api, consumer: PullConsumer) -> None:
    send(api, consumer, {"record": CHANI, "metadata": {"table_schema": "public", "table_name": "members"}})
    [received] = consumer.receive()
    assert received.keys() == {"ack_id", "ack_token", "record", "metadata"}
    assert received["record"] == CHANI


def test_unsettled_messages_are_redelivered_after_the_visibility_timeout(api: Api) -> None:
    consumer = made(api, next(names), ack_wait_ms=1000)
    send(api, consumer, CHANI)
    first = consumer.receive(10)
    again = consumer.receive(10, wait_for=10_000)
    assert [one["record"] for one in again] == [one["record"] for one in first]
    assert again[0]["ack_id"] != first[0]["ack_id"]


def test_a_receive_that_waits_is_answered_once_something_is_sent(api: Api, consumer: PullConsumer) -> None:
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(consumer.receive(10, wait_for=20_000)))
    waiting.start()
    send(api, consumer, CHANI)
    waiting.join(20)
    assert [one["record"] for one in found] == [CHANI]


def test_changes_of_a_row_wait_for_the_one_before(api: Api, consumer: PullConsumer) -> None:
    for title in ("Duke of Arrakis", "Emperor of the Known Universe"):
        send(api, consumer, {"id": 1, "title": title})
    [first] = consumer.receive(10)
    assert consumer.receive(10) == []
    consumer.ack([first["ack_token"]])
    [second] = consumer.receive(10)
    assert (first["record"]["title"], second["record"]["title"]) == ("Duke of Arrakis", "Emperor of the Known Universe")


def test_no_more_may_wait_than_max_waiting_says(api: Api) -> None:
    """Requests over the limit of waiting requests are refused, and all others are answered."""
    consumer = made(api, next(names), max_waiting=2)
    refused, served = [], []

    def receive() -> None:
        try:
            served.append(consumer.receive(1, wait_for=20_000))
        except Answer as answer:
            refused.append(answer.status)
            if len(refused) == 3:
                enough.set()

    enough = threading.Event()
    threads = [threading.Thread(target=receive) for _ in range(5)]
    for thread in threads:
        thread.start()
    assert enough.wait(20)
    send(api, consumer, CHANI, {"id": 3})
    for thread in threads:
        thread.join(20)
    assert refused == [429] * 3
    assert sorted(len(one) for one in served) == [1, 1]


def test_a_name_that_two_streams_have_is_qualified(api: Api) -> None:
    for stream in (one := next(names), other := next(names)):
        Streams(api).create(stream)
        Streams(api).add_consumer(stream, "shared")
        Streams(api).send(stream, "k", stream)
    assert PullConsumer(api, f"{one}:shared").receive()[0]["record"] == one
    assert PullConsumer(api, f"{other}:shared").receive()[0]["record"] == other
    answer = api.refused("GET", "/api/http_pull_consumers/shared/receive")
    assert answer.status in (404, 409, 422)
    assert one in answer.body["summary"]
