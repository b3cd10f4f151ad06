"""Stand-ins for routes of the API that the console uses and that this version of the server does not have yet.

Each is used only as long as the server's own description lacks its route, so that the tests run on the real one as soon
as it is there.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace import App
from headrace.server.asgi import Server
from headrace.server.http import Receive, Scope, Send

Query = dict[str, Any]


class ServerWithStandIns(Server):
    """A server with a stand-in for each route that it lacks."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._missing: list[tuple[str, re.Pattern[str], Any]] | None = None
        self._jobs: list[dict[str, Any]] = []
        self._audit: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            if self._missing is None:
                self._missing = [one for one in STAND_INS if _template(one[1].pattern) not in await self._paths()]
            if self._missing and scope["path"].endswith("/messages"):  # a key's history came with the search
                scope = {**scope, "query_string": scope["query_string"].replace(b"key=", b"filter=")}
            for method, pattern, answer in self._missing:
                found = pattern.fullmatch(scope["path"])
                if found and method == scope["method"]:
                    return await self._stand_in(scope, receive, send, answer, found.groups())
        return await super().__call__(scope, receive, send)

    async def _paths(self) -> set[str]:
        """Return the paths of the server's description, with `{}` for each name."""
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "path": "/openapi.json", "raw_path": b"/openapi.json", "root_path": "",
            "scheme": "http", "query_string": b"", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }  # fmt: skip
        await super().__call__(scope, receive, send)
        document = json.loads(b"".join(one.get("body", b"") for one in sent))
        return {re.sub(r"\{[^}]*\}", "{}", path) for path in document["paths"]}

    async def _stand_in(
        self, scope: Scope, receive: Receive, send: Send, answer: Callable[..., Any], names: tuple[str, ...]
    ) -> None:
        from urllib.parse import parse_qsl, unquote

        from headrace.server.access.scopes import authorization_of
        from headrace.server.errors import error_response

        query: Query = dict(parse_qsl(scope["query_string"].decode()))
        body = b""
        while scope["method"] == "POST":
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        try:
            await self.identification.identify(scope, scope["path"])
            visible = await self.access.streams(authorization_of(scope["headers"]), "consume")
            given = json.loads(body or b"{}")
            found = await answer(self, visible, query if scope["method"] == "GET" else given, *map(unquote, names))
        except Exception as error:
            return await error_response(error).send(send)
        content = found if isinstance(found, bytes) else json.dumps(found, default=str).encode()
        etag = b'"%d-%d"' % (int(time.time()), len(content))
        status = 304 if (b"if-none-match", etag) in scope["headers"] else 200
        headers = [(b"content-type", b"application/json"), (b"etag", etag), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if status == 304 else content})
        return None


def _plain(info: Any) -> Any:
    return msgspec.to_builtins(info, enc_hook=str)


def _wave(at: float, most: float) -> list[float]:
    return [round(most * (1 + math.sin((at + second) / 9)) / 2, 1) for second in range(60)]


async def _streams(app: App, visible: Any) -> list[Any]:
    return [one for one in await app.admin.streams() if visible is None or one.name in visible]


async def _consumers(app: App, visible: Any) -> list[Any]:
    return [one for stream in await _streams(app, visible) for one in await app.admin.consumers(stream.name)]


def _stream_row(info: Any) -> dict[str, Any]:
    return {
        "name": info.name, "id": info.id, "publish_rate": 9.2, "messages": info.messages, "size": info.size,
        "last_seq": info.last_seq or 0, "consumers": info.consumers, "lag": 3, "dead_letters": 0, "state": "active",
        "rates": _wave(time.time(), 10),
    }  # fmt: skip


def _consumer_row(info: Any) -> dict[str, Any]:
    state = "paused" if info.paused_until else "blocked" if info.blocked else "running"
    reason = {
        "paused": "It is paused until somebody resumes it.",
        "blocked": "Keys wait for their dead letters.",
        "running": "",
    }
    return {
        "stream": info.stream, "name": info.name, "id": info.id, "kind": "push" if info.settings["push"] else "pull", "state": state,
        "reason": reason[state], "finish_rate": 9.0, "lag": info.lag, "lag_seconds": info.lag / 9, "in_flight": info.num_ack_pending,
        "parked": info.parked, "blocked": info.blocked, "dead_letters": info.dead_letters, "actors": 8, "busy_actors": 2,
        "missed": info.missed, "paused_until": info.paused_until and info.paused_until.isoformat(), "rates": _wave(time.time(), 9),
    }  # fmt: skip


_last: dict[Any, Any] = {}


async def live(server: ServerWithStandIns, visible: Any, query: Query) -> Any:
    from headrace.model.errors import StoreUnavailable

    app = server.app
    try:
        streams, consumers = await _streams(app, visible), await _consumers(app, visible)
    except StoreUnavailable as error:
        found = _last[visible]
        return {
            "data": {
                **found["data"],
                "database": {**found["data"]["database"], "reachable": False, "error": str(error)[:80]},
            }
        }
    rows = [_consumer_row(one) for one in consumers]
    attention = [
        {"kind": "consumer", "stream": row["stream"], "name": row["name"], "state": row["state"], "reason": row["reason"],
         "mend": None, "since": None}
        for row in rows if row["state"] != "running"
    ]  # fmt: skip
    sums = {
        name: sum(row[name] for row in rows)
        for name in ("lag", "in_flight", "parked", "blocked", "dead_letters", "actors", "busy_actors")
    }
    found = {"data": {
        "at": datetime.now(UTC).isoformat(), "server": {"version": "0.1.0", "uptime_seconds": 8000, "processes": 1},
        "database": {"reachable": True, "version": "18.1", "size_bytes": 345_000_000, "clock_offset_seconds": 0.002, "error": None},
        "totals": {"streams": len(streams), "consumers": len(rows), "processes": 1, "sources": 1, "publish_rate": 18.4,
                   "finish_rate": 17.2, **sums},
        "attention": attention,
    }}  # fmt: skip
    _last[visible] = found
    return found


def _page(rows: list[dict[str, Any]], query: Query) -> Any:
    rows = [
        row for row in rows if query.get("q", "") in row["name"] and query.get("stream") in (None, row.get("stream"))
    ]
    rows = [row for row in rows if query.get("state") in (None, row["state"])]
    sort = {"rate": "publish_rate" if rows and "publish_rate" in rows[0] else "finish_rate"}.get(
        query.get("sort", "name"), query.get("sort", "name")
    )
    rows.sort(key=lambda row: row[sort], reverse=query.get("desc") == "true")
    offset, limit = int(query.get("offset", 0)), int(query.get("limit", 50))
    return {"data": rows[offset : offset + limit], "total": len(rows), "at": datetime.now(UTC).isoformat()}


async def live_streams(server: ServerWithStandIns, visible: Any, query: Query) -> Any:
    return _page([_stream_row(one) for one in await _streams(server.app, visible)], query)


async def live_stream(server: ServerWithStandIns, visible: Any, query: Query, stream: str) -> Any:
    info = await server.app.admin.stream(stream)
    return {"data": {**_stream_row(info), "info": _plain(info)}}


async def live_consumers(server: ServerWithStandIns, visible: Any, query: Query) -> Any:
    return _page([_consumer_row(one) for one in await _consumers(server.app, visible)], query)


async def live_consumer(server: ServerWithStandIns, visible: Any, query: Query, stream: str, name: str) -> Any:
    info = await server.app.admin.consumer(stream, name)
    process = {
        "process_id": "a", "host": "worker-1", "pid": 4711, "in_flight": 2, "actors": 8, "busy": 2, "breaker": "closed",
        "reason": "more actors would not finish more", "durations": {"p50_ms": 2.0, "p95_ms": 3.1, "p99_ms": 9.0},
    }  # fmt: skip
    words = "Process 4711 on worker-1 has 8 actors, since 12 of them finished no more in the last trial."
    return {
        "data": {
            **_consumer_row(info),
            "info": _plain(info),
            "processes": [process],
            "governor": [{"process_id": "a", "text": words}],
        }
    }


async def live_processes(server: ServerWithStandIns, visible: Any, query: Query) -> Any:
    return {"data": [_plain(one) for one in (await server.app.admin.overview()).workers]}


async def live_sources(server: ServerWithStandIns, visible: Any, query: Query) -> Any:
    row = {"name": "shop", "kind": "webhook", "stream": "payments", "state": "active", "reason": None, "mend": None, "changes_rate": None,
           "behind_bytes": None, "wal_held_bytes": None, "failures": 0}  # fmt: skip
    return {"data": [] if visible is not None else [row]}


async def samples(server: ServerWithStandIns, visible: Any, query: Query) -> Any:
    at = [int(time.time()) - 18 * (200 - index) for index in range(200)]
    names = ("publish_rate", "finish_rate", "lag", "lag_seconds", "in_flight", "parked", "blocked", "dead_letters")
    series = {
        name: [round(20 + 3 * row + 9 * math.sin(index / 15 + row), 2) for index in range(200)]
        for row, name in enumerate(names)
    }
    return {"data": {"at": at, "series": series}}


async def audit(server: ServerWithStandIns, visible: Any, query: Query) -> Any:
    return {"data": server._audit}


async def search(server: ServerWithStandIns, visible: Any, query: Query, stream: str) -> Any:
    before = int(query.get("before", 2**62))
    last = min((await server.app.admin.stream(stream)).last_seq or 0, before - 1)
    low = max(last - 49, 1)
    rows = await server.app.admin.messages(
        stream, filter=query.get("filter"), where=query.get("where"), start_seq=low, limit=1000
    )
    rows = [one for one in reversed(rows) if one.seq <= last]
    data = [{**_plain(one), "inserted_at": one.created_at} for one in rows if one.seq >= low]
    return {"data": data, "examined": last - low + 1, "position": low, "more": low > 1, "remaining": low}


async def journey(server: ServerWithStandIns, visible: Any, query: Query, stream: str, seq: str) -> Any:
    message = (await server.app.admin.messages(stream, start_seq=int(seq), limit=1))[0]
    dead = {one.seq: one for one in await server.app.admin.dead_letters(stream, "ship", limit=1000)}.get(int(seq))
    empty = dict.fromkeys(
        ("until", "owner", "lease_until", "attempt", "attempts", "error", "behind", "acked_by", "reason")
    )
    ship = (
        {**empty, "state": "dead_letter", "error": dead.error, "reason": dead.reason, "attempts": dead.attempts}
        if dead
        else {**empty, "state": "acked"}
    )
    return {"data": {"message": {**_plain(message), "trace": None}, "consumers": [{"consumer": "ship", **ship}]}}


async def seek(server: ServerWithStandIns, visible: Any, given: Query, stream: str, consumer: str) -> Any:
    info = await server.app.admin.consumer(stream, consumer)
    if given.get("dry_run"):
        again = max(0, info.position - int(given["to"]) + 1)
        return {
            "data": {
                "from": info.position,
                "to": given["to"],
                "again": again,
                "again_exact": True,
                "skipped": 0,
                "in_flight": 0,
            }
        }
    return {"data": {"position": await server.app.admin.seek(stream, consumer, given["to"])}}


async def export(server: ServerWithStandIns, visible: Any, query: Query, stream: str, consumer: str) -> Any:
    found = await server.app.admin.dead_letters(stream, consumer, limit=1000)
    return b"".join(json.dumps(_plain(one)).encode() + b"\n" for one in found)


async def jobs(server: ServerWithStandIns, visible: Any, query: Query) -> Any:
    return {"data": server._jobs}


async def start_job(server: ServerWithStandIns, visible: Any, given: Query) -> Any:
    job = {
        "id": len(server._jobs) + 1, "kind": given["kind"], "stream": given["stream"], "consumer": given["consumer"], "state": "running",
        "total": 2000, "done": 400, "error": None, "created_at": datetime.now(UTC).isoformat(), "created_by": "ops", "finished_at": None,
    }  # fmt: skip
    server._jobs.insert(0, job)
    return {"data": job}


async def cancel_job(server: ServerWithStandIns, visible: Any, given: Query, number: str) -> Any:
    job = next(one for one in server._jobs if str(one["id"]) == number)
    job |= {"state": "cancelled", "finished_at": datetime.now(UTC).isoformat()}
    return {"data": job}


async def deliveries(server: ServerWithStandIns, visible: Any, query: Query, source: str) -> Any:
    at = datetime.now(UTC).isoformat()
    accepted = {
        "at": at,
        "accepted": True,
        "status": 200,
        "reason": None,
        "bytes": 60,
        "key": "shop.paid",
        "seq": 3,
        "remote": "127.0.0.1",
    }
    refused = {
        **accepted,
        "accepted": False,
        "status": 401,
        "reason": "The signature is wrong.",
        "key": None,
        "seq": None,
    }
    return {"data": [accepted, refused]}


_CONSUMER = "/v1/streams/([^/]+)/consumers/([^/]+)"

STAND_INS = [
    (method, re.compile(pattern), answer)
    for method, pattern, answer in (
        ("GET", "/v1/live", live),
        ("GET", "/v1/live/streams", live_streams),
        ("GET", "/v1/live/streams/([^/]+)", live_stream),
        ("GET", "/v1/live/consumers", live_consumers),
        ("GET", "/v1/live/streams/([^/]+)/consumers/([^/]+)", live_consumer),
        ("GET", "/v1/live/processes", live_processes),
        ("GET", "/v1/live/sources", live_sources),
        ("GET", "/v1/samples", samples),
        ("GET", "/v1/audit", audit),
        ("GET", "/v1/streams/([^/]+)/search", search),
        ("GET", "/v1/streams/([^/]+)/journeys/([^/]+)", journey),
        ("GET", f"{_CONSUMER}/dead_letters/export", export),
        ("GET", "/v1/jobs", jobs),
        ("POST", "/v1/jobs", start_job),
        ("POST", "/v1/jobs/([^/]+)/cancel", cancel_job),
        ("GET", "/v1/sources/([^/]+)/deliveries", deliveries),
        ("POST", f"{_CONSUMER}/seek", seek),
    )
]


def _template(pattern: str) -> str:
    """Return a pattern as a path of the description. A preview of a seek has no path of its own, so its stand-in stays
    until the search is there, which came with it."""
    found = pattern.replace("([^/]+)", "{}")
    return "/v1/streams/{}/search" if found.endswith("/seek") else found
