-- Schedules of periodic messages, see docs/how-to/periodic.md and functions/periodic.sql.
--
-- Locks: headrace_internal.streams (share row exclusive)

-- A process that declares a schedule computes its due times. This row is what all processes agree on: the next due
-- time, which moves on in the transaction that publishes the message.
create table headrace_internal.schedules (
    id            int generated always as identity primary key,
    name          text collate "C" not null unique,
    stream_id     int not null references headrace_internal.streams (id) on delete cascade,
    settings      json not null,
    digest        text not null,        -- of the settings, by which a process knows whether they are its own
    next_at       timestamptz,          -- the next due time. Null until a process has computed it
    requested_at  timestamptz,          -- a user wants a message now
    last_due_at   timestamptz,          -- the due time of the last message ...
    last_run_at   timestamptz,          -- ... and when it was published
    messages      bigint not null default 0,        -- how many were published
    paused_at     timestamptz,
    seen_at       timestamptz not null default clock_timestamp(),   -- when a process with these settings last asked
    created_at    timestamptz not null default clock_timestamp(),
    updated_at    timestamptz not null default clock_timestamp()
) with (fillfactor = 50);
create index schedules_by_stream on headrace_internal.schedules (stream_id);
