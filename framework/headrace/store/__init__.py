"""The store: streams and consumers with leases, on Postgres. All SQL of Headrace is in this package.

The five verbs are publish, lease, settle, seek and retain. Each has a module of its own (retain is
`retention`). Server functions in `sql/functions/` do the work, and the modules call them. Every verb
runs on an `Executor`: a `Database`, or the caller's connection inside a transaction.
"""

# Every name that is imported here is exported. A list of them would say each name twice.
# mypy: implicit-reexport
# ruff: noqa: F401

from headrace.store.capture.backfills import (
    BackfillToDo,
    backfill_wanted,
    backfills,
    begin_backfill,
    cancel_backfills,
    fail_backfill,
    next_backfill,
    request_due_verifications,
    request_resync,
    start_backfill,
)
from headrace.store.capture.captures import (
    CaptureBatch,
    CapturedTable,
    CaptureFailure,
    CapturePosition,
    CaptureToDo,
    ChunkDone,
    FailureToRetry,
    append_captured,
    begin_capture,
    capture_failures,
    capture_position,
    captured_rows,
    captured_tables,
    captures_to_do,
    drop_capture_failures,
    failures_to_retry,
    forget_captured_tables,
    interrupt_capture,
    keys_captured_since,
    pause_capture,
    record_captured_table,
    record_failed_retries,
    release_capture,
    renew_capture,
    reopen_capture,
    report_capture,
    reset_capture,
    retry_capture_failures,
    set_idle_timeout,
    shared_slot_id,
    shared_slot_positions,
    stop_capture,
    take_capture,
    truncate_captured,
)
from headrace.store.capture.verifications import (
    CapturedMessage,
    TableInStream,
    captured_page,
    compare_folded,
    compare_messages,
    delete_verified_rows,
    fold_messages,
    folded_page,
    last_key,
    live_folded,
    live_messages,
)
from headrace.store.catalog.configurations import (
    Kind,
    Managed,
    lock_configurations,
    manage,
    managed,
    managed_elsewhere,
    unmanage,
)
from headrace.store.catalog.databases import (
    PLACES_PAGE,
    Place,
    PlaceKind,
    add_database,
    confirm_place,
    database_identity,
    databases,
    edit_database,
    forget_place,
    names_elsewhere,
    names_of,
    own_names,
    place_name,
    place_of,
    places_of,
    reconcile_places,
    remove_database,
    stream_count,
)
from headrace.store.catalog.declarations import (
    Declared,
    Found,
    consumer_exists,
    consumer_id,
    consumer_spec,
    create_stream,
    declare_consumer,
    declare_stream,
    edit_stream,
    find_consumers,
    find_stream,
    streams_named,
)
from headrace.store.catalog.grants import (
    PRIVILEGES,
    Grant,
    Right,
    change_grants,
    grant,
    grant_sql,
    grants,
    has_right,
    require_membership,
    require_role,
    restore_grants,
    revoke,
    revoke_sql,
)
from headrace.store.catalog.key_states import standing
from headrace.store.catalog.operations import blocked_keys, delete_consumer, delete_stream, pause, resume
from headrace.store.catalog.overview import sources_at_work
from headrace.store.catalog.push_consumers import PushConsumer, push_consumers
from headrace.store.catalog.recent_events import (
    AnswerToRecord,
    DeliveryToRecord,
    deliveries,
    push_answers,
    record_deliveries,
    record_push_answers,
)
from headrace.store.catalog.schedules import (
    PolledSchedule,
    ScheduleRun,
    declare_schedule,
    delete_schedule,
    pause_schedule,
    poll_schedules,
    request_schedule,
    run_schedule,
    schedule,
    schedules,
)
from headrace.store.catalog.secrets import secret
from headrace.store.catalog.sessions import begin_session, end_session, session, sessions
from headrace.store.catalog.sources import (
    create_source,
    delete_source,
    edit_source,
    lock_source,
    source,
    source_with_secrets,
    sources,
    webhook_sources,
)
from headrace.store.catalog.states import consumer, consumers, stream, streams
from headrace.store.catalog.tokens import (
    add_token,
    any_token,
    delete_tokens,
    edit_token,
    revoke_token,
    token_named,
    tokens,
    tokens_of,
)
from headrace.store.catalog.workers import (
    consumer_at_work,
    delete_heartbeat,
    feature_is_on,
    forget_workers,
    live_revision,
    record_heartbeat,
    switch_on_features,
    workers,
)
from headrace.store.database.database import Database, Executor
from headrace.store.database.listener import listen
from headrace.store.database.migrations import (
    PATIENCE,
    Patience,
    Plan,
    migrate,
    plan_migration,
    require_current_schema,
    schema_state,
    schema_version,
)
from headrace.store.database.ownership import SCHEMAS
from headrace.store.database.revisions import newest_revision
from headrace.store.database.schema import SchemaState
from headrace.store.maintenance.key_indexes import adjust_key_indexes
from headrace.store.maintenance.leader import lead, notify_waiting, resign
from headrace.store.maintenance.retention import (
    StreamToSweep,
    check_full,
    clean_up_writes,
    close_segment_early,
    delete_done_unique_keys,
    delete_old_message_ids,
    drop_segments,
    note_drawn,
    plan_segments,
    remove_tombstones,
    streams_to_sweep,
    streams_with_unique_keys,
    trim_stream,
    try_mend_sequence,
)
from headrace.store.maintenance.schedule import next_scheduled, publish_scheduled
from headrace.store.maintenance.vacuum import dead_rows, is_in_statistics, tables_to_vacuum, vacuum_table
from headrace.store.maintenance.watermark import open_inserts
from headrace.store.messages.check_in import CheckIn, Owner, check_in, check_out
from headrace.store.messages.dead_letters import (
    dead_letter_groups,
    dead_letters,
    discard,
    redrive,
)
from headrace.store.messages.erase import Erased, erase, erase_contents, erasures, forget_erased
from headrace.store.messages.jobs import (
    ClaimedJob,
    NewJob,
    cancel_job,
    claim_job,
    create_job,
    delete_old_jobs,
    fail_job,
    jobs,
    release_job,
    work_job,
)
from headrace.store.messages.journeys import ConsumerPlace, MessageBySeq, journey, message_by_seq
from headrace.store.messages.lease import extend_leases, lease, mark_started, reclaim, wait, without_subscription
from headrace.store.messages.peek import (
    Contents,
    current_history,
    history_and_stream,
    messages_at,
    peek,
)
from headrace.store.messages.publish import discard_staged, publish, publish_all, publish_many, publish_staged
from headrace.store.messages.replay import Selection, replay, republish
from headrace.store.messages.search import Search, SeqRange, messages, search
from headrace.store.messages.seek import seek, seek_preview, seek_to
from headrace.store.messages.settle import settle
from headrace.store.messages.transactions import (
    Acks,
    Forgotten,
    Status,
    TransactionEnded,
    Witness,
    ack,
    ack_and_commit,
    forget_commits,
    leave_witness,
    transaction_status,
)
from headrace.store.watching.audit import MAX_DELETED, changes, delete_old_changes, record_change
from headrace.store.watching.live import (
    CatalogConsumer,
    CatalogStream,
    LiveCounts,
    LiveFigures,
    LiveSize,
    ServerFacts,
    live_catalog,
    live_counts,
    live_figures,
    live_sizes,
    live_times,
    server_facts,
)
from headrace.store.watching.samples import Sample, chart, compact_samples, record_samples
