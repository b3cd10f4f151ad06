"""The AsyncAPI document of an app.

It is checked by the JSON Schema of AsyncAPI 3.0.0 that the AsyncAPI Initiative publishes under the Apache License 2.0, in
`asyncapi-3.0.0.json.gz`, without its descriptions and examples.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pydantic
import pytest

from headrace import AesGcm, App, ConfigurationError, Message, Router
from headrace.cli.main import call
from tests.typed.pages import page_file

SCHEMA = json.loads(gzip.decompress(Path(__file__).with_name("asyncapi-3.0.0.json.gz").read_bytes()))
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)


class Order(msgspec.Struct):
    """An order.

    With lines."""

    id: int


class Line(pydantic.BaseModel):
    sku: str


class Basket(pydantic.BaseModel):
    lines: list[Line]


@dataclass
class Count:
    number: int


def valid(app: App) -> dict[str, Any]:
    document = app.asyncapi(title="Shop")
    VALIDATOR.validate(json.loads(json.dumps(document)))
    return document


def resolved(document: dict[str, Any], reference: str) -> Any:
    found: Any = document
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def references(found: Any) -> list[str]:
    if isinstance(found, dict):
        own = [found["$ref"]] if isinstance(found.get("$ref"), str) else []
        return own + [one for value in found.values() for one in references(value)]
    return [one for value in found for one in references(value)] if isinstance(found, list) else []


def test_streams_are_channels_and_handlers_are_operations() -> None:
    app, router = App("postgresql://me:password@host/db"), Router()
    orders = app.stream("orders", Order, retain_up_to="7d", codec=AesGcm({"k": AesGcm.new_key()}))
    baskets = router.stream("baskets", Basket)
    app.capture("public.counts", into="counts")

    @orders.upcaster(from_version=1)
    def same(data: Any) -> Any:
        return data

    @orders.consumer(
        filter=["a.>", "b"], where="key = 'a'", backoff=["1s", "5s"], batch=7, publishes=baskets, transactional=True
    )
    async def pack(orders: list[Order]) -> list[tuple[str, Basket]]:
        """Pack orders.

        Many of them."""
        return []

    @app.consumer("counts", name="a.b")
    async def counted(count: Count, message: Message) -> None: ...

    @app.consumer("counts")
    async def anything(message: Message) -> None: ...

    app.include(router)
    document = valid(app)
    assert all(resolved(document, reference) for reference in references(document))
    assert "password" not in json.dumps(document)
    assert document["channels"].keys() == {"orders", "baskets", "counts"}
    assert document["channels"]["orders"]["x-headrace-stream"] == {"retain_up_to": 604800.0}
    assert document["channels"]["counts"]["x-headrace-capture"] == ["public.counts"]
    assert document["operations"].keys() == {"orders.pack", "orders.pack.publishes", "counts.a.b", "counts.anything"}
    pack_operation = document["operations"]["orders.pack"]
    assert pack_operation == {
        "action": "receive",
        "channel": {"$ref": "#/channels/orders"},
        "title": "pack",
        "summary": "Pack orders.",
        "description": "Many of them.",
        "x-headrace-filter": ["a.>", "b"],
        "x-headrace-where": "key = 'a'",
        "x-headrace-ordered": True,
        "x-headrace-retry": {
            "max_deliver": 10,
            "ack_wait": 30.0,
            "backoff": {"delays": [1.0, 5.0]},
            "on_exhausted": "dead_letter",
        },
        "x-headrace-batch": 7,
        "x-headrace-transactional": True,
    }
    assert document["operations"]["orders.pack.publishes"]["channel"] == {"$ref": "#/channels/baskets"}
    message = document["components"]["messages"]["orders.Order"]
    assert message["summary"] == "An order."
    assert message["x-headrace-codec"] == "AesGcm"
    assert message["headers"]["properties"]["headrace-version"] == {"type": "integer", "const": 2}
    schemas = document["components"]["schemas"]
    assert schemas.keys() == {"Order", "Basket", "Line", "Count"}
    assert schemas["Basket"]["properties"]["lines"]["items"] == {"$ref": "#/components/schemas/Line"}


@pytest.mark.parametrize("kind", [int, list[int], dict[str, Order], Order | None, list[Basket], Any])
def test_any_type_that_a_stream_carries_is_described(kind: Any) -> None:
    app = App()
    app.stream("orders", kind)
    document = valid(app)
    assert len(document["components"]["messages"]) == (kind is not Any)


def test_an_empty_app_has_a_valid_document() -> None:
    assert valid(App())["channels"] == {}


def test_a_struct_and_a_model_of_one_name_are_refused() -> None:
    app = App()
    app.stream("one", Order)
    app.stream("two", pydantic.create_model("Order", sku=(str, ...)))
    with pytest.raises(ConfigurationError, match="Two payload types are called 'Order' and differ"):
        app.asyncapi(title="Shop")


def test_the_command_prints_the_document_of_the_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = page_file("asyncapi", tmp_path)
    assert call(["asyncapi", f"{file}:app", "--api-version", "2.1.0"]) == 0
    document = json.loads(capfd.readouterr().out)
    VALIDATOR.validate(document)
    assert document["info"] == {"title": "asyncapi_page", "version": "2.1.0"}
    assert document["operations"]["orders.ship"]["summary"] == "Ship orders to the United States."


def test_schedules_are_operations_that_send() -> None:
    app = App()
    app.every("0 9 * * *", "reports", zone="Europe/Berlin", name="daily", data={"password": "secret"})
    document = valid(app)
    assert document["channels"]["reports"]["address"] == "reports"
    assert document["operations"] == {
        "reports.daily.every": {
            "action": "send",
            "channel": {"$ref": "#/channels/reports"},
            "title": "daily",
            "x-headrace-every": "0 9 * * *",
            "x-headrace-zone": "Europe/Berlin",
        }
    }
