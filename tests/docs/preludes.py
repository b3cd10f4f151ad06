"""The names that the code of the documentation's pages takes from elsewhere: the types, functions and tables of a shop."""

from __future__ import annotations

import typing
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import fastapi
import msgspec
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

import headrace
from headrace import App, Router

SQL = """
    create table orders (id bigint);
    create table shipments (id bigint);
    select headrace.create_stream('orders');
    select headrace.create_stream('shipments');
"""
"""The tables and streams that statements expect."""


class Order(msgspec.Struct):
    """The type that pages call an order, a transfer, a visit, a position, an image or an invoice."""

    id: int = 17
    total: float = 12.0

    def save(self) -> None:
        """Save it, as Django's models do."""


def names() -> dict[str, Any]:
    """Return the names that programs of pages use and do not define."""
    kinds = dict.fromkeys(("Order", "Transfer", "Visit", "Position", "Image", "Invoice"), Order)
    return {
        **{name: getattr(headrace, name) for name in ("Batch", "Message", "Reject", "Retry", "Transaction")},
        **kinds,
        "app": App(),
        "order": Order(),
        "key": "orders.17",
        "shipping": SimpleNamespace(router=Router()),
        "my_tracer_provider": TracerProvider(),
        "my_meter_provider": MeterProvider(),
        "FastAPI": fastapi.FastAPI,
        "Response": fastapi.Response,
        "AsyncIterator": AsyncIterator,
        "AsyncExitStack": AsyncExitStack,
        "asynccontextmanager": asynccontextmanager,
        "Any": typing.Any,
    }
