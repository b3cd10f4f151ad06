"""The expectations of the API's client libraries, as their own test suites have it: a life of streams, messages and
consumers, with the names and the types that their documentation gives.

The libraries are older than this server. They know `filter_key_pattern`, `max_storage_gb` and `process_unmodified`,
they delete without `force`, and their objects have an `account_id`.
"""

from __future__ import annotations

import itertools
import json
import urllib.request
from datetime import datetime
from typing import Any, TypedDict, get_type_hints
from uuid import UUID

import pytest

from tests.server.stdlib_client import Answer, Api

_names = (f"library{number}" for number in itertools.count())


class Stats(TypedDict):
    message_count: int
    consumer_count: int
    storage_size: int


class Stream(TypedDict):
    id: UUID
    account_id: UUID
    name: str
    one_message_per_key: bool
    process_unmodified: bool
    max_storage_gb: int | float | None
    retain_up_to: int | float | None
    retain_at_least: int | float | None
    stats: Stats
    inserted_at: datetime
    updated_at: datetime


class Consumer(TypedDict):
    id: UUID
    account_id: UUID
    stream_id: UUID
    name: str
    ack_wait_ms: int
    max_ack_pending: int
    max_deliver: int
    max_waiting: int
    filter_key_pattern: str
    kind: str
    status: str
    inserted_at: datetime
    updated_at: datetime


class Message(TypedDict):
    key: str
    stream_id: UUID
    data: Any
    seq: int
    inserted_at: datetime
    updated_at: datetime


class Webhook(TypedDict):
    id: UUID
    name: str
    stream: str
    inserted_at: datetime
    updated_at: datetime


def check(found: Any, kind: Any, what: str = "answer") -> Any:
    """Check that an answer has the fields of a type, with their types, and return it."""
    for name, expected in get_type_hints(kind).items():
        place = f"{what}.{name}"
        assert name in found, f"{place} is missing"
        if expected is UUID or expected is datetime:
            assert isinstance(found[name], str), place
            UUID(found[name]) if expected is UUID else datetime.fromisoformat(found[name])
        elif expected is Stats:
            check(found[name], Stats, place)
        elif expected is not Any:
            assert isinstance(found[name], expected), place
    return found


class Library:
    """A client library of the API. The methods send what a library's methods of these names send."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def create_stream(self, name: str, **options: Any) -> Any:
        return check(self.api.post("/api/streams", {"name": name, **options}), Stream)

    def get_stream(self, stream: str) -> Any:
        return check(self.api.get(f"/api/streams/{stream}"), Stream)

    def update_stream(self, stream: str, **options: Any) -> Any:
        return check(self.api.call("PUT", f"/api/streams/{stream}", options), Stream)

    def list_streams(self) -> list[Any]:
        return [check(one, Stream) for one in self.api.get("/api/streams")["data"]]

    def delete_stream(self, stream: str) -> Any:
        return self.api.call("DELETE", f"/api/streams/{stream}")

    def send_messages(self, stream: str, *messages: tuple[str, Any]) -> int:
        body = {"messages": [{"key": key, "data": data} for key, data in messages]}
        return int(self.api.post(f"/api/streams/{stream}/messages", body)["data"]["published"])

    def list_messages(self, stream: str, query: str = "") -> list[Any]:
        return [check(one, Message) for one in self.api.get(f"/api/streams/{stream}/messages{query}")["data"]]

    def get_message(self, stream: str, key: str) -> Any:
        return check(self.api.get(f"/api/streams/{stream}/messages/{key}"), Message)

    def create_consumer(self, stream: str, name: str, filter_key_pattern: str, **options: Any) -> Any:
        body = {"name": name, "filter_key_pattern": filter_key_pattern, **options}
        return check(self.api.post(f"/api/streams/{stream}/consumers", body), Consumer)

    def get_consumer(self, stream: str, consumer: str) -> Any:
        return check(self.api.get(f"/api/streams/{stream}/consumers/{consumer}"), Consumer)

    def update_consumer(self, stream: str, consumer: str, **options: Any) -> Any:
        return check(self.api.call("PUT", f"/api/streams/{stream}/consumers/{consumer}", options), Consumer)

    def list_consumers(self, stream: str) -> list[Any]:
        return [check(one, Consumer) for one in self.api.get(f"/api/streams/{stream}/consumers")["data"]]

    def delete_consumer(self, stream: str, consumer: str) -> Any:
        return self.api.call("DELETE", f"/api/streams/{stream}/consumers/{consumer}")

    def receive_messages(self, stream: str, consumer: str, batch_size: int = 10) -> list[Any]:
        path = f"/api/streams/{stream}/consumers/{consumer}/receive"
        found = self.api.post(path, {"batch_size": batch_size})["data"]
        for one in found:
            assert isinstance(one["ack_id"], str)
            check(one["message"], Message)
        return list(found)

    def settle(self, verb: str, stream: str, consumer: str, received: list[Any]) -> Any:
        body = {"ack_ids": [one["ack_id"] for one in received]}
        return self.api.post(f"/api/streams/{stream}/consumers/{consumer}/{verb}", body)


@pytest.fixture
def library(served_url: str) -> Library:
    return Library(Api(served_url))


@pytest.fixture
def name() -> str:
    return next(_names)


def test_the_life_of_a_stream(library: Library, name: str) -> None:
    created = library.create_stream(
        name,
        one_message_per_key=True,
        process_unmodified=False,
        max_storage_gb=1,
        retain_up_to=86400,
        retain_at_least=3600,
    )
    sent = {
        "name": name, "one_message_per_key": True, "process_unmodified": False, "max_storage_gb": 1,
        "retain_up_to": 86400, "retain_at_least": 3600,
    }  # fmt: skip
    assert {field: created[field] for field in sent} == sent
    assert library.get_stream(name) == library.get_stream(created["id"]) == created
    assert created["id"] in [one["id"] for one in library.list_streams()]
    changed = library.update_stream(created["id"], max_storage_gb=2.5, process_unmodified=True)
    assert (changed["max_storage_gb"], changed["process_unmodified"], changed["id"]) == (2.5, True, created["id"])
    assert library.delete_stream(name) == {"id": created["id"], "deleted": True}
    assert library.api.refused("GET", f"/api/streams/{name}").status == 404
    assert library.api.refused("DELETE", f"/api/streams/{name}").status == 404


def test_the_life_of_messages(library: Library, name: str) -> None:
    library.create_stream(name, one_message_per_key=True, process_unmodified=True)
    assert library.send_messages(name, ("a.1", "one"), ("a.2", {"n": 2}), ("b.1", [3])) == 3
    assert library.send_messages(name, ("a.1", "newer")) == 1
    assert [(one["key"], one["data"]) for one in library.list_messages(name)] == [
        ("a.2", {"n": 2}), ("b.1", [3]), ("a.1", "newer"),
    ]  # fmt: skip
    assert [one["key"] for one in library.list_messages(name, "?sort=seq_desc&limit=1")] == ["a.1"]
    assert [one["key"] for one in library.list_messages(name, "?key_pattern=a.*")] == ["a.2", "a.1"]
    found = library.get_message(name, "a.1")
    assert (found["data"], found["stream_id"]) == ("newer", library.get_stream(name)["id"])
    assert found["updated_at"] == found["inserted_at"]
    assert library.get_stream(name)["stats"]["message_count"] == 3
    assert library.api.refused("GET", f"/api/streams/{name}/messages/none").status == 404


def test_the_life_of_a_consumer(library: Library, name: str) -> None:
    stream = library.create_stream(name)
    created = library.create_consumer(
        name, "worker", "orders.>", ack_wait_ms=60000, max_ack_pending=5, max_deliver=3, max_waiting=7
    )
    assert (created["filter_key_pattern"], created["ack_wait_ms"], created["max_ack_pending"]) == ("orders.>", 60000, 5)
    assert (created["stream_id"], created["account_id"]) == (stream["id"], stream["account_id"])
    assert library.get_consumer(name, "worker") == library.get_consumer(name, created["id"])
    assert [one["id"] for one in library.list_consumers(name)] == [created["id"]]
    assert library.update_consumer(name, "worker", ack_wait_ms=5000)["ack_wait_ms"] == 5000
    library.send_messages(name, ("orders.1", 1), ("orders.2", 2), ("other.1", 3))
    one = library.receive_messages(name, "worker", batch_size=1)
    assert [received["message"]["key"] for received in one] == ["orders.1"]
    assert library.settle("ack", name, "worker", one) == {"success": True}
    two = library.receive_messages(name, "worker")
    assert [received["message"]["key"] for received in two] == ["orders.2"]
    assert library.settle("nack", name, "worker", two) == {"success": True}
    assert library.settle("ack", name, "worker", library.receive_messages(name, "worker")) == {"success": True}
    assert library.receive_messages(name, "worker") == []
    assert library.settle("ack", name, "worker", []) == {"success": True}
    assert library.delete_consumer(name, "worker") == {"id": created["id"], "deleted": True}
    assert library.api.refused("GET", f"/api/streams/{name}/consumers/worker").status == 404


def test_a_consumer_and_its_stream_are_deleted_while_messages_are_unacked(library: Library, name: str) -> None:
    """As a test suite cleans up after a test that acked nothing."""
    stream = library.create_stream(name)
    created = library.create_consumer(name, "worker", ">")
    library.send_messages(name, ("a", 1), ("b", 2))
    assert len(library.receive_messages(name, "worker")) == 2
    assert library.delete_consumer(name, "worker") == {"id": created["id"], "deleted": True}
    again = library.create_consumer(name, "worker", ">")
    assert again["id"] != created["id"]
    assert len(library.receive_messages(name, "worker")) == 2
    assert library.delete_stream(name) == {"id": stream["id"], "deleted": True}
    assert library.create_stream(name)["stats"] == {**library.get_stream(name)["stats"], "message_count": 0}


def test_unmodified_messages_are_processed_or_not(library: Library, name: str) -> None:
    """`process_unmodified` decides whether a consumer receives a message of a key again whose data is the same."""
    for process, received in ((False, 1), (True, 2)):
        stream = f"{name}-{process}".lower()
        library.create_stream(stream, one_message_per_key=True, process_unmodified=process)
        library.create_consumer(stream, "worker", ">")
        found = []
        for _ in range(2):
            library.send_messages(stream, ("a", {"same": 1}))
            batch = library.receive_messages(stream, "worker")
            library.settle("ack", stream, "worker", batch)
            found += batch
        assert len(found) == received


def test_a_webhook_fills_a_stream(library: Library, name: str) -> None:
    library.create_stream(name)
    source = check(
        library.api.post("/api/sources", {"kind": "webhook", "name": f"{name}-hook", "stream": name}), Webhook
    )
    assert library.api.post(f"/api/webhook/{name}-hook", {"id": 1}) == {"success": True}
    [found] = library.list_messages(name)
    assert found["data"] == {"id": 1}
    assert found["key"].startswith(f"{name}-hook.")
    assert library.api.call("DELETE", f"/api/sources/{source['id']}")["deleted"] is True
    assert library.delete_stream(name)["deleted"] is True


@pytest.mark.parametrize("prefix", ["/v1", "/api"])
@pytest.mark.parametrize("by", ["id", "name"])
def test_a_consumer_is_acked_without_its_streams_name(library: Library, name: str, prefix: str, by: str) -> None:
    """`POST /consumers/:consumer_id/ack`."""
    library.create_stream(name)
    consumer = library.create_consumer(name, f"{name}-worker", ">")
    library.send_messages(name, ("a", 1), ("b", 2))
    first, second = library.receive_messages(name, f"{name}-worker")
    path = f"{prefix}/consumers/{consumer[by]}"
    assert library.api.post(f"{path}/ack", {"ack_ids": [first["ack_id"]]}) == {"success": True}
    assert library.api.post(f"{path}/nack", {"ack_tokens": [second["ack_id"]]}) == {"success": True}
    [again] = library.receive_messages(name, f"{name}-worker")
    assert again["message"]["key"] == "b"
    assert library.api.refused("POST", f"{path}x/ack", {"ack_ids": [first["ack_id"]]}).status == 404


# --- what the libraries of Go, Elixir and the later one of Go check besides, by their sources


def test_a_message_is_sent_with_all_fields_of_a_received_one(library: Library, name: str) -> None:
    library.create_stream(name)
    never = "0001-01-01T00:00:00Z"  # the zero time
    sent = {"key": "a.1", "stream_id": "", "data": "value", "seq": 0, "inserted_at": never, "updated_at": never}
    path = f"streams/{name}/messages"
    assert library.api.post(f"/api/{path}", {"messages": [sent, {**sent, "key": "a.2"}]}) == {"data": {"published": 2}}
    assert library.api.post(f"/api/{path}", sent) == {"data": {"published": 1}}
    assert [one["data"] for one in library.list_messages(name)] == ["value"] * 3
    (again,) = library.list_messages(name, "?limit=1")
    assert library.api.post(f"/api/{path}", {"messages": [again]}) == {"data": {"published": 1}}
    for wrong in ({**sent, "sequence": 1}, {**sent, "data": None, "dta": 1}):
        with pytest.raises(Answer, match="422"):
            library.api.post(f"/api/{path}", {"messages": [wrong]})
    with pytest.raises(Answer, match=r"422.*stream_id"):  # today's API is strict
        library.api.post(f"/v1/{path}", {"messages": [sent]})


def test_an_object_is_created_and_changed_with_all_fields_of_its_answer(library: Library, name: str) -> None:
    stream = library.api.post("/api/streams", {"name": name})
    assert library.api.call("PUT", f"/api/streams/{name}", stream)["id"] == stream["id"]
    body = {"name": "c", "stream_id": stream["id"], "filter_key_pattern": "a.>", "kind": "pull"}
    consumer = library.api.post(f"/api/streams/{name}/consumers", body)
    assert consumer["filter_key_pattern"] == "a.>"
    path = f"/api/streams/{name}/consumers/c"
    assert library.api.call("PUT", path, consumer)["id"] == consumer["id"]
    known = {field: value for field, value in consumer.items() if field in get_type_hints(Consumer)}
    assert library.api.call("PUT", path, {**known, "ack_wait_ms": 5000})["ack_wait_ms"] == 5000
    with pytest.raises(Answer, match=r"422.*stream_id"):
        library.api.post(f"/v1/streams/{name}/consumers", {**body, "name": "d"})


def test_only_200_is_a_success(served_url: str, name: str) -> None:
    for prefix, status in (("/api", 200), ("/v1", 201)):
        for path, body in (
            ("/streams", {"name": name + prefix[1:]}),
            (f"/streams/{name}{prefix[1:]}/consumers", {"name": "c"}),
        ):
            request = urllib.request.Request(
                served_url + prefix + path, json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == status, (prefix, path)


def test_a_batch_has_a_largest_size_and_its_records_in_data(library: Library, name: str) -> None:
    library.create_stream(name)
    library.create_consumer(name, name, ">")
    library.send_messages(name, *((f"a.{number}", {"total": number}) for number in range(5)))
    path = f"/api/http_pull_consumers/{name}"
    first = library.api.post(f"{path}/receive", {"max_batch_size": 2, "wait_for": 1000})["data"]
    assert [one["data"]["record"] for one in first] == [{"total": 0}, {"total": 1}]
    assert first[0]["data"]["metadata"]["consumer"]["name"] == name
    library.api.post(f"{path}/ack", {"ack_ids": [one["ack_id"] for one in first]})
    more = library.api.get(f"{path}/receive?max_batch_size=2")["data"]
    assert [one["data"]["record"] for one in more] == [{"total": 2}, {"total": 3}]
