"""The store: a durable log with leases, on nothing but Postgres. This room has the only SQL.

Five verbs, a module each: `publish`, `lease`, `settle`, `seek`, and retain, which is `sweep` here. The work is done by server
functions in `sql/functions/`; the modules here call them. Every verb runs on an `Executor`: a `Database`, or a connection of
the caller's inside a transaction.
"""

from headrace.store.backfills import (
    BackfillToDo,
    backfill_wanted,
    backfills,
    begin_backfill,
    cancel_backfills,
    fail_backfill,
    next_backfill,
    start_backfill,
)
from headrace.store.captures import (
    Captured,
    CapturePosition,
    CaptureToDo,
    ChunkDone,
    Failed,
    FailureToRetry,
    append_captured,
    begin_capture,
    capture_failures,
    capture_position,
    captured_rows,
    captured_since,
    captures_to_do,
    drop_capture_failures,
    empty_captured,
    end_when_idle,
    failed_again,
    failures_to_retry,
    interrupt_capture,
    pause_capture,
    release_capture,
    renew_capture,
    reopen_capture,
    reset_capture,
    retry_capture_failures,
    take_capture,
    tell_capture,
)
from headrace.store.catalog import (
    Declared,
    Found,
    consumer_id,
    consumer_spec,
    create_stream,
    declare_consumer,
    edit_stream,
    find_consumers,
    find_stream,
)
from headrace.store.database import Database, Executor
from headrace.store.dead_letters import dead_letters, discard, redrive
from headrace.store.glance import sources_at_work
from headrace.store.info import consumer, consumers, stream, streams
from headrace.store.lease import extend, extend_leases, lease, mark_started, reclaim, wait
from headrace.store.listen import listen
from headrace.store.migrate import migrate, schema_version
from headrace.store.operate import blocked_keys, delete_consumer, delete_stream, pause, resume
from headrace.store.peek import latest, messages, messages_at, peek
from headrace.store.publish import publish, publish_all, publish_many
from headrace.store.push import PushConsumer, push_consumers
from headrace.store.replay import Selection, replay, republish
from headrace.store.retention import Sweeper, Swept, sweep
from headrace.store.secrets import secret
from headrace.store.seek import seek, seek_to
from headrace.store.settle import settle
from headrace.store.sources import create_source, delete_source, edit_source, source, source_with_secrets, sources
from headrace.store.standing import standing
from headrace.store.tokens import add_token, any_token, revoke_token, tokens, tokens_of
from headrace.store.transactions import Acks, Status, ack, transaction_status
from headrace.store.workers import forget_workers, tell_worker, worker_left, workers

__all__ = [
    "Acks",
    "BackfillToDo",
    "CapturePosition",
    "CaptureToDo",
    "Captured",
    "ChunkDone",
    "Database",
    "Declared",
    "Executor",
    "Failed",
    "FailureToRetry",
    "Found",
    "PushConsumer",
    "Selection",
    "Status",
    "Sweeper",
    "Swept",
    "ack",
    "add_token",
    "any_token",
    "append_captured",
    "backfill_wanted",
    "backfills",
    "begin_backfill",
    "begin_capture",
    "blocked_keys",
    "cancel_backfills",
    "capture_failures",
    "capture_position",
    "captured_rows",
    "captured_since",
    "captures_to_do",
    "consumer",
    "consumer_id",
    "consumer_spec",
    "consumers",
    "create_source",
    "create_stream",
    "dead_letters",
    "declare_consumer",
    "delete_consumer",
    "delete_source",
    "delete_stream",
    "discard",
    "drop_capture_failures",
    "edit_source",
    "edit_stream",
    "empty_captured",
    "end_when_idle",
    "extend",
    "extend_leases",
    "fail_backfill",
    "failed_again",
    "failures_to_retry",
    "find_consumers",
    "find_stream",
    "forget_workers",
    "interrupt_capture",
    "latest",
    "lease",
    "listen",
    "mark_started",
    "messages",
    "messages_at",
    "migrate",
    "next_backfill",
    "pause",
    "pause_capture",
    "peek",
    "publish",
    "publish_all",
    "publish_many",
    "push_consumers",
    "reclaim",
    "redrive",
    "release_capture",
    "renew_capture",
    "reopen_capture",
    "replay",
    "republish",
    "reset_capture",
    "resume",
    "retry_capture_failures",
    "revoke_token",
    "schema_version",
    "secret",
    "seek",
    "seek_to",
    "settle",
    "source",
    "source_with_secrets",
    "sources",
    "sources_at_work",
    "standing",
    "start_backfill",
    "stream",
    "streams",
    "sweep",
    "take_capture",
    "tell_capture",
    "tell_worker",
    "tokens",
    "tokens_of",
    "transaction_status",
    "wait",
    "worker_left",
    "workers",
]
