-- Retries remember their delay, so that they don't wait longer if the server's clock is set back.
-- Locks: headrace_internal.parked (access exclusive)
alter table headrace_internal.parked add column delay float8;      -- seconds. Null for a message that is due at once

-- Notifications of transactions that have not ended, where these can be prepared, see notifications.sql.
create unlogged table headrace_internal.notifications (
    xid        xid8 not null default pg_current_xact_id(),
    stream_id  int not null,
    primary key (xid, stream_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_threshold = 2147483647);

-- The function follows with the others.
create function headrace_internal.notify_unless_prepared() returns trigger language plpgsql as 'begin return null; end';
create constraint trigger notify_unless_prepared after insert on headrace_internal.notifications
    deferrable initially deferred for each row execute function headrace_internal.notify_unless_prepared();
