"""Headrace: durable message streams on Postgres, and a framework that processes them with a pool of concurrent actors.

    from headrace import App, Message

    app = App()                      # the embedded Postgres, or App("postgresql://…")

    @app.consumer("orders", filter="orders.us.>")
    async def ship(order: Order, message: Message) -> None: ...

Run it with `headrace run service:app`.
"""

import os
from typing import TYPE_CHECKING, Any

from headrace.model.conditions import Condition, field
from headrace.model.errors import (
    ConfigurationError,
    ConsumersDeleted,
    EmbeddedPostgresError,
    FilterTooSlow,
    HeadraceError,
    InUse,
    InvalidData,
    InvalidFilter,
    InvalidInput,
    InvalidKey,
    LeaseLost,
    SchemaError,
    SequenceBehind,
    StoreError,
    StoreFull,
    StoreUnavailable,
    StreamFull,
    UnknownConsumer,
    UnknownStream,
)
from headrace.model.handling import Breaker
from headrace.model.outcomes import Reject, Retry, Snooze
from headrace.model.specs import Backoff

if os.name != "posix":
    raise ImportError(
        "Headrace runs on POSIX systems: Linux, macOS and the BSDs. On Windows, install and run it in the Windows"
        " Subsystem for Linux (WSL 2), or in a container."
    )

if TYPE_CHECKING:
    from headrace.app.app import App
    from headrace.app.declarations import Router
    from headrace.app.readiness import Readiness
    from headrace.app.streams.stream import Stream
    from headrace.model.text.printing import printable
    from headrace.runtime.formats.aes_gcm import AesGcm
    from headrace.runtime.formats.codec import Codec, UnreadablePayload
    from headrace.runtime.handlers.dependencies import Depends
    from headrace.runtime.handlers.middleware import Middleware, Next
    from headrace.runtime.maintenance.sweeper import sweep
    from headrace.runtime.messages.batch import Batch
    from headrace.runtime.messages.message import Message
    from headrace.runtime.messages.transaction import Transaction
    from headrace.sources.postgres.rules.transforms import transform
    from headrace.sources.postgres.spec import PostgresSpec
    from headrace.sources.webhook import WebhookSpec
    from headrace.telemetry import Telemetry

__all__ = [
    "AesGcm",
    "App",
    "Backoff",
    "Batch",
    "Breaker",
    "Codec",
    "Condition",
    "ConfigurationError",
    "ConsumersDeleted",
    "Depends",
    "EmbeddedPostgresError",
    "FilterTooSlow",
    "HeadraceError",
    "InUse",
    "InvalidData",
    "InvalidFilter",
    "InvalidInput",
    "InvalidKey",
    "LeaseLost",
    "Message",
    "Middleware",
    "Next",
    "PostgresSpec",
    "Readiness",
    "Reject",
    "Retry",
    "Router",
    "SchemaError",
    "SequenceBehind",
    "Snooze",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
    "Stream",
    "StreamFull",
    "Telemetry",
    "Transaction",
    "UnknownConsumer",
    "UnknownStream",
    "UnreadablePayload",
    "WebhookSpec",
    "field",
    "printable",
    "sweep",
    "transform",
]

# Imported on first use. These modules import the database driver and the event loop, which `headrace
# --help` doesn't need.
_LAZY = {
    "AesGcm": "headrace.runtime.formats.aes_gcm",
    "App": "headrace.app.app",
    "Batch": "headrace.runtime.messages.batch",
    "Codec": "headrace.runtime.formats.codec",
    "Depends": "headrace.runtime.handlers.dependencies",
    "Message": "headrace.runtime.messages.message",
    "Middleware": "headrace.runtime.handlers.middleware",
    "Next": "headrace.runtime.handlers.middleware",
    "PostgresSpec": "headrace.sources.postgres.spec",
    "Readiness": "headrace.app.readiness",
    "Router": "headrace.app.declarations",
    "Stream": "headrace.app.streams.stream",
    "Telemetry": "headrace.telemetry",
    "Transaction": "headrace.runtime.messages.transaction",
    "UnreadablePayload": "headrace.runtime.formats.codec",
    "WebhookSpec": "headrace.sources.webhook",
    "printable": "headrace.model.text.printing",
    "sweep": "headrace.runtime.maintenance.sweeper",
    "transform": "headrace.sources.postgres.rules.transforms",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value
