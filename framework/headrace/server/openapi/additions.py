"""Additions to the OpenAPI description that routes can't make: errors, examples, and paths that
Litestar doesn't serve."""

from __future__ import annotations

from typing import Any

ANSWERS: dict[str, tuple[str, str]] = {
    "Malformed": ("The body is not JSON.", "400"),
    "Unauthorized": ("The token is missing or invalid.", "401"),
    "Forbidden": (
        "The token lacks the required scope. Without tokens, the host is not allowed, or a web page of another origin has sent the request.",
        "403",
    ),
    "Unknown": ("The object does not exist.", "404"),
    "Conflict": (
        "The object exists already or is in use, its name is ambiguous, or a strict settle has lost leases.",
        "409",
    ),
    "TooLarge": ("The body is too large.", "413"),
    "UnsupportedMediaType": (
        "Without tokens, the body has a content type that a form of a web page can send. Send `application/json`.",
        "415",
    ),
    "Invalid": ("The request is invalid. `validation_errors` names the fields.", "422"),
    "TooManyWaiting": ("The consumer's `max_waiting` is reached, or too many attempts to sign in have failed.", "429"),
    "HeadTooLarge": ("The path, the query and the headers together are too large.", "431"),
    "Unavailable": ("The database is unavailable, or the server is at a limit. Try again after `Retry-After`.", "503"),
}
"""Descriptions and statuses of the errors, by their names."""

_KEY = "orders.us.cus_a.order_1"
_CONSUMER = "/v1/streams/{stream}/consumers/{consumer}"
_ACK_IDS = {"ack_ids": ["AAAAAQAAAAAAAAAqAAAAAAAAAAEAAAABAAoP5VTXw2fWYjEr"]}

EXAMPLES: dict[tuple[str, str], Any] = {
    ("post", "/v1/streams/{stream}/publish"): {"key": "orders.us.42", "data": {"total": 12}},
    ("post", "/v1/streams"): {"name": "mystream", "retain_up_to": "30d"},
    ("patch", "/v1/streams/{stream}"): {"max_storage": 10_000_000_000},
    ("put", "/v1/streams/{stream}"): {"max_storage": 10_000_000_000},
    ("post", "/v1/streams/{stream}/messages"): {"key": _KEY, "data": {"product": "Shoes"}},
    ("post", "/v1/messages"): {"messages": [{"stream": "mystream", "key": _KEY, "data": {"product": "Shoes"}}]},
    ("post", "/v1/streams/{stream}/erasures"): {"seqs": [17, 18], "reason": "request 2031-17"},
    ("post", "/v1/streams/{stream}/republish"): {"target": "mystream", "filter": "orders.us.>", "dry_run": True},
    ("post", "/v1/streams/{stream}/consumers"): {
        "name": "us_orders",
        "filter": "orders.us.>",
        "ack_wait_ms": 30000,
        "max_ack_pending": 100,
        "max_deliver": 10,
    },
    ("patch", _CONSUMER): {"max_ack_pending": 500},
    ("put", _CONSUMER): {"max_ack_pending": 500},
    ("post", f"{_CONSUMER}/receive"): {"batch_size": 10, "wait_for": "5s", **_ACK_IDS},
    ("post", f"{_CONSUMER}/messages"): {"batch_size": 10},
    ("post", f"{_CONSUMER}/ack"): _ACK_IDS,
    ("post", f"{_CONSUMER}/nack"): {**_ACK_IDS, "delay_ms": 5000, "error": "the warehouse is closed"},
    ("post", f"{_CONSUMER}/extend"): _ACK_IDS,
    ("post", f"{_CONSUMER}/seek"): {"to": "start"},
    ("post", f"{_CONSUMER}/pause"): {"until": None},
    ("post", "/v1/jobs"): {
        "kind": "redrive",
        "stream": "mystream",
        "consumer": "us_orders",
        "selection": {"error_type": "shop.NoStock"},
    },
    ("post", "/v1/http_pull_consumers/{consumer}/receive"): {"batch_size": 10},
    ("post", "/v1/http_pull_consumers/{consumer}/ack"): {"ack_tokens": _ACK_IDS["ack_ids"]},
    ("post", "/v1/http_pull_consumers/{consumer}/nack"): {"ack_tokens": _ACK_IDS["ack_ids"]},
    ("post", "/v1/consumers/{consumer}/receive"): {"batch_size": 10},
    ("post", "/v1/consumers/{consumer}/ack"): _ACK_IDS,
    ("post", "/v1/consumers/{consumer}/nack"): _ACK_IDS,
    ("post", "/v1/http-consumers"): {
        "name": "my-http-consumer",
        "ack_wait_ms": 30000,
        "max_deliver": -1,
        "deliver_policy": "all",
        "filters": {"collection_id": "salesforce:contact", "resource_id": "*"},
    },
    ("patch", "/v1/http-consumers/{consumer}"): {"max_ack_pending": 500},
    ("put", "/v1/http-consumers/{consumer}"): {"max_ack_pending": 500},
    ("post", "/v1/http-consumers/{consumer}/ack"): {"ack_tokens": _ACK_IDS["ack_ids"]},
    ("post", "/v1/http-consumers/{consumer}/nack"): {"ack_tokens": _ACK_IDS["ack_ids"]},
    ("post", "/v1/sources"): {
        "kind": "webhook",
        "name": "stripe",
        "stream": "mystream",
        "key": "stripe.{body.type}.{body.id}",
    },
    ("patch", "/v1/sources/{source}"): {"max_body": 1_000_000},
    ("put", "/v1/sources/{source}"): {"max_body": 1_000_000},
    ("post", "/v1/source-check"): {
        "kind": "postgres",
        "name": "orders",
        "stream": "orders",
        "tables": ["public.orders"],
    },
    ("post", "/v1/databases"): {"name": "eu", "url_from": "env:EU_DATABASE"},
    ("post", "/v1/session"): {"token": "hr_0123456789ab_0123456789abcdefghijABCDEFGHIJ0123456789"},
    ("post", "/v1/tokens"): {"name": "ci", "scopes": ["publish:mystream"]},
}
"""Example request bodies by method and path."""


def _json(description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": {"type": "object"}}}}


PATHS: dict[str, Any] = {
    "/health": {
        "get": {
            "operationId": "health",
            "summary": "Check that the process is alive",
            "tags": ["Health"],
            "security": [{}],
            "responses": {"200": _json("The process is alive.")},
        }
    },
    "/ready": {
        "get": {
            "operationId": "ready",
            "summary": "Check that the server is ready",
            "description": "Checks that the database can be reached, that its schema is current, and that no source has stopped. `ready` is whether that is so. The reasons against it are only in the answer to a token with `admin` for all streams, and while no token was ever created.",
            "tags": ["Health"],
            "security": [{}],
            "parameters": [
                {
                    "name": "exclude",
                    "in": "query",
                    "description": "`sources` returns 200 although a source has stopped. For load balancers.",
                    "schema": {"type": "string", "enum": ["sources"]},
                }
            ],
            "responses": {
                "200": _json("The server is ready."),
                "400": {"$ref": "#/components/responses/Malformed"},
                "422": {"$ref": "#/components/responses/Invalid"},
                "503": _json("The server is not ready, with the reasons."),
            },
        }
    },
    "/metrics": {
        "get": {
            "operationId": "metrics",
            "summary": "Read the metrics in Prometheus's text format",
            "tags": ["Health"],
            "responses": {
                "200": {"description": "The metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}},
                "401": {"$ref": "#/components/responses/Unauthorized"},
                "403": {"$ref": "#/components/responses/Forbidden"},
                "503": {"$ref": "#/components/responses/Unavailable"},
            },
        }
    },
}
"""Paths that are answered before Litestar."""
