"""The names of spans, metrics and attributes, from OpenTelemetry's conventions for messaging where they exist.

https://opentelemetry.io/docs/specs/semconv/messaging/ (still in development, these are the names as of
version 1.44.0).
"""

SCHEMA = "https://opentelemetry.io/schemas/1.44.0"
SYSTEM_NAME = "headrace"

# attributes
SYSTEM = "messaging.system"
DESTINATION = "messaging.destination.name"
GROUP = "messaging.consumer.group.name"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
BATCH_COUNT = "messaging.batch.message_count"
MESSAGE_ID = "messaging.message.id"
ERROR_TYPE = "error.type"
KEY = "messaging.headrace.message.key"
ATTEMPT = "messaging.headrace.message.attempt"
ACKED = "messaging.headrace.settle.acked"
FAILED = "messaging.headrace.settle.failed"
RELEASED = "messaging.headrace.settle.released"
REASON = "headrace.reason"
SOURCE = "headrace.source"
CAPTURE_STATE = "headrace.capture.state"
QUERY = "headrace.spark.query"
POOL = "db.client.connection.pool.name"
STATE = "db.client.connection.state"

# histograms and synchronous counters
SENT = "messaging.client.sent.messages"
OPERATION_DURATION = "messaging.client.operation.duration"
PROCESS_DURATION = "messaging.process.duration"

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bucket boundaries in seconds, as the conventions recommend for both histograms."""


def message_id(stream: str, seq: int) -> str:
    """The value of `messaging.message.id` for a message."""
    return f"{stream}:{seq}"
