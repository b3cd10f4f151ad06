"""Headrace: a durable message stream on nothing but Postgres, and a framework that puts a pool of actors to work on it.

from headrace import App, Message

    app = App()                      # the embedded Postgres; or App("postgresql://…")

    @app.consumer("orders", filter="orders.us.>")
    async def ship(order: Order, message: Message) -> None: ...

Run it with `headrace run service:app`.
"""

from headrace.app.app import App
from headrace.model.errors import (
    ConfigurationError,
    EmbeddedPostgresError,
    HeadraceError,
    InvalidData,
    InvalidFilter,
    InvalidInput,
    InvalidKey,
    LeaseLost,
    SchemaError,
    StoreFull,
    StoreUnavailable,
    UnknownConsumer,
    UnknownStream,
)
from headrace.model.outcomes import Reject, Retry
from headrace.model.specs import Backoff
from headrace.runtime.message import Message

__all__ = [
    "App",
    "Backoff",
    "ConfigurationError",
    "EmbeddedPostgresError",
    "HeadraceError",
    "InvalidData",
    "InvalidFilter",
    "InvalidInput",
    "InvalidKey",
    "LeaseLost",
    "Message",
    "Reject",
    "Retry",
    "SchemaError",
    "StoreFull",
    "StoreUnavailable",
    "UnknownConsumer",
    "UnknownStream",
]
