"""The document of the consume API, executed with the standard library."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.server.stdlib_client import Api, ConsumeApi, Streams

names = (f"records{number}" for number in itertools.count())

PAUL = {"FirstName": "Paul", "LastName": "Atreides"}


def record(collection: str, resource: str, data: Any = None) -> dict[str, Any]:
    return {
        "id": "aa9a329d-c3cb-4dea-9ea4-42e99cfc08d7", "collection_id": collection, "resource_id": resource,
        "data": data or PAUL, "upstream_updated_at": "2024-02-03T04:05:06Z",
    }  # fmt: skip


@pytest.fixture
def api(served_url: str) -> Api:
    return Api(served_url, token="your-token")


@pytest.fixture
def consume(api: Api) -> ConsumeApi:
    return ConsumeApi(api)


@pytest.fixture
def stream(api: Api) -> str:
    """A stream with records of two collections."""
    name = next(names)
    Streams(api).create(name)
    Streams(api).send_many(
        name,
        ("1", record("salesforce:contact", "7d522b89")),
        ("2", record("stripe:charge", "c1")),
        ("3", record("salesforce:contact", "8e633c90", {"FirstName": "Chani"})),
    )
    return name


def create(consume: ConsumeApi, stream: str, **settings: Any) -> str:
    name = f"{stream}-consumer"
    settings_sent = {"ack_wait_ms": 30000, "max_deliver": -1, "deliver_policy": "all", **settings}
    created = consume.create(name=name, stream=stream, **settings_sent)
    assert created["name"] == name
    return name


def test_create_next_ack_and_nack_work_as_the_document_has_them(api: Api, stream: str) -> None:
    name = f"{stream}-http-consumer"
    created = api.post(
        "/v1/http-consumers",
        {
            "name": name, "stream": stream, "ack_wait_ms": 30000, "max_deliver": -1, "deliver_policy": "all",
            "filters": {"collection_id": "salesforce:contact", "resource_id": "*"},
        },
    )  # fmt: skip
    assert (created["name"], created["ack_wait_ms"], created["max_deliver"]) == (name, 30000, -1)
    answer = api.get(f"/v1/http-consumers/{name}/next?batch_size=10")
    assert answer.keys() == {"data", "info"}
    assert [one["record"] for one in answer["data"]] == [
        record("salesforce:contact", "7d522b89"),
        record("salesforce:contact", "8e633c90", {"FirstName": "Chani"}),
    ]
    tokens = [one["ack_token"] for one in answer["data"]]
    assert api.get(f"/v1/http-consumers/{name}/next?batch_size=10")["data"] == []
    assert api.post(f"/v1/http-consumers/{name}/ack", {"ack_tokens": tokens[:1]}) == {"success": True}
    assert api.post(f"/v1/http-consumers/{name}/nack", {"ack_tokens": tokens[1:]}) == {"success": True}
    again = api.get(f"/v1/http-consumers/{name}/next?batch_size=10")["data"]
    assert [one["record"]["resource_id"] for one in again] == ["8e633c90"]


def test_info_says_how_much_there_is_to_do(consume: ConsumeApi, stream: str) -> None:
    consumer = create(consume, stream)
    assert consume.next(consumer, 2)["info"] == {"num_pending": 1, "num_ack_pending": 2}


def test_a_consumer_without_filters_gets_everything(consume: ConsumeApi, stream: str) -> None:
    consumer = create(consume, stream)
    found = consume.next(consumer, 10)["data"]
    assert [one["record"]["collection_id"] for one in found] == [
        "salesforce:contact",
        "stripe:charge",
        "salesforce:contact",
    ]


@pytest.mark.parametrize(
    ("filters", "resources"),
    [
        ({"collection_id": "stripe:charge"}, ["c1"]),
        ({"collection_id": "salesforce:contact", "resource_id": "8e633c90"}, ["8e633c90"]),
        ({"collection_id": "*"}, ["7d522b89", "c1", "8e633c90"]),
        ({"collection_id": "none; drop table"}, []),
    ],
)
def test_filters_name_fields_of_the_record(
    consume: ConsumeApi, stream: str, filters: dict[str, str], resources: list[str]
) -> None:
    consumer = create(consume, stream, filters=filters)
    assert [one["record"]["resource_id"] for one in consume.next(consumer, 10)["data"]] == resources


def test_unacked_messages_are_redelivered_after_the_ack_wait(consume: ConsumeApi, stream: str) -> None:
    consumer = create(consume, stream, ack_wait_ms=1000)
    assert len(consume.next(consumer, 10)["data"]) == 3
    again = consume.next(consumer, 10, wait_for=10_000)["data"]
    assert len(again) == 3
    assert consume.ack(consumer, [one["ack_token"] for one in again]) == {"success": True}
    assert consume.next(consumer, 10, wait_for=1500)["data"] == []


def test_without_a_limit_a_message_comes_again_and_again(consume: ConsumeApi, stream: str) -> None:
    consumer = create(consume, stream, max_deliver=-1, filters={"collection_id": "stripe:charge"})
    for _ in range(15):
        [found] = consume.next(consumer, 10)["data"]
        consume.nack(consumer, [found["ack_token"]])
    assert len(consume.next(consumer, 10)["data"]) == 1


def test_a_message_of_another_shape_is_the_data_of_a_record(api: Api, consume: ConsumeApi) -> None:
    stream = next(names)
    Streams(api).create(stream)
    Streams(api).send(stream, "contact.1", PAUL)
    [found] = consume.next(create(consume, stream), 10)["data"]
    assert found["record"]["data"] == PAUL
    assert (found["record"]["collection_id"], found["record"]["resource_id"]) == (stream, "contact.1")
    assert {"id", "upstream_updated_at"} <= found["record"].keys()


def test_workers_share_the_messages_of_a_consumer(consume: ConsumeApi, stream: str) -> None:
    consumer = create(consume, stream)
    found = [consume.next(consumer)["data"] for _ in range(4)]
    assert [len(one) for one in found] == [1, 1, 1, 0]
    assert len({one[0]["ack_token"] for one in found if one}) == 3
