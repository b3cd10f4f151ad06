"""A client that uses only the standard library and the older documents of each dialect.

It uses no import, type or name of Headrace that those documents lack.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


class Answer(Exception):
    """An answer other than 2xx.

    Attributes:
        status: The HTTP status.
        body: The decoded body.
    """

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class Api:
    """GET, POST, PUT, PATCH and DELETE with JSON.

    Args:
        url: The server's URL, such as http://localhost:7376.
        token: Sent as `Authorization: Bearer TOKEN`. It is not checked if the server has no tokens.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url = url
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer's JSON. Raises `Answer` unless the status is 2xx."""
        headers = dict(self._headers)
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=30) as answer:
                return _decoded(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise Answer(error.code, _decoded(error.read())) from None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, {} if body is None else body)

    def refused(self, method: str, path: str, body: Any = None) -> Answer:
        """Make a call that must fail, and return its answer."""
        try:
            found = self.call(method, path, body)
        except Answer as answer:
            return answer
        raise AssertionError(f"{method} {path} should have been refused, and was answered {found}")


def _decoded(text: bytes) -> Any:
    return json.loads(text) if text else None


class Streams:
    """The message stream: create streams and consumers, send, receive, ack.

    Args:
        api: The client to call it with.
        prefix: "/v1" or "/api".
    """

    def __init__(self, api: Api, prefix: str = "/v1") -> None:
        self._api = api
        self._at = f"{prefix}/streams"

    def create(self, name: str, **settings: Any) -> Any:
        return self._api.post(self._at, {"name": name, **settings})

    def send(self, stream: str, key: str, data: Any) -> Any:
        return self._api.post(f"{self._at}/{stream}/messages", {"key": key, "data": data})

    def send_many(self, stream: str, *messages: tuple[str, Any]) -> Any:
        body = {"messages": [{"key": key, "data": data} for key, data in messages]}
        return self._api.post(f"{self._at}/{stream}/messages", body)

    def add_consumer(self, stream: str, name: str, **settings: Any) -> Any:
        return self._api.post(f"{self._at}/{stream}/consumers", {"name": name, **settings})

    def receive(self, stream: str, consumer: str, **how: Any) -> list[Any]:
        found: list[Any] = self._api.post(f"{self._at}/{stream}/consumers/{consumer}/receive", how)["data"]
        return found

    def ack(self, stream: str, consumer: str, received: list[Any]) -> Any:
        return self._settle(stream, consumer, "ack", received)

    def nack(self, stream: str, consumer: str, received: list[Any]) -> Any:
        return self._settle(stream, consumer, "nack", received)

    def _settle(self, stream: str, consumer: str, verb: str, received: list[Any]) -> Any:
        ids = [one["ack_id"] for one in received]
        return self._api.post(f"{self._at}/{stream}/consumers/{consumer}/{verb}", {"ack_ids": ids})


class PullConsumer:
    """A pull consumer, addressed by its name: receive, ack, nack.

    Args:
        name: The consumer's name.
    """

    def __init__(self, api: Api, name: str, prefix: str = "/api") -> None:
        self.name = name
        self._api = api
        self._at = f"{prefix}/http_pull_consumers/{name}"

    def receive(self, batch_size: int = 1, wait_for: int = 0, method: str = "GET") -> list[Any]:
        if method == "GET":
            found: list[Any] = self._api.get(f"{self._at}/receive?batch_size={batch_size}&wait_for={wait_for}")["data"]
        else:
            found = self._api.post(f"{self._at}/receive", {"batch_size": batch_size, "wait_for": wait_for})["data"]
        return found

    def ack(self, tokens: list[str], word: str = "ack_tokens") -> Any:
        return self._api.post(f"{self._at}/ack", {word: tokens})

    def nack(self, tokens: list[str], word: str = "ack_tokens") -> Any:
        return self._api.post(f"{self._at}/nack", {word: tokens})


class ConsumeApi:
    """The consume API: create a consumer, fetch its next messages, ack, nack."""

    def __init__(self, api: Api, prefix: str = "/v1") -> None:
        self._api = api
        self._at = f"{prefix}/http-consumers"

    def create(self, **settings: Any) -> Any:
        return self._api.post(self._at, settings)

    def next(self, consumer: str, batch_size: int = 1, wait_for: int | None = None) -> Any:
        waiting = "" if wait_for is None else f"&wait_for={wait_for}"
        return self._api.get(f"{self._at}/{consumer}/next?batch_size={batch_size}{waiting}")

    def ack(self, consumer: str, tokens: list[str]) -> Any:
        return self._api.post(f"{self._at}/{consumer}/ack", {"ack_tokens": tokens})

    def nack(self, consumer: str, tokens: list[str]) -> Any:
        return self._api.post(f"{self._at}/{consumer}/nack", {"ack_tokens": tokens})
