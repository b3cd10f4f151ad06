-- The audit log, see functions/audit.sql, and samples for charts, see functions/samples.sql.

-- A change that somebody made. The id contains the time in microseconds, so that the lists of several databases merge
-- by it, and a range of times is a range of ids.
create sequence headrace_internal.audit_ids;
create table headrace_internal.audit (
    id           bigint primary key,
    actor        text,
    via          text not null,
    role         text not null,
    action       text not null,
    stream       text collate "C",          -- its name, which stays after its deletion
    object_kind  text not null,
    object_name  text not null,
    details      json not null
);
alter sequence headrace_internal.audit_ids owned by headrace_internal.audit.id;
create index audit_by_stream on headrace_internal.audit (stream, id);

-- Figures of the past, for charts. A row is about p_step seconds from a time on. It has what was published and finished
-- in them, and the largest of each level. An object that did not change has no rows, but `total` has them as long as
-- samples are taken.
create table headrace_internal.samples (
    kind          smallint not null,        -- 0: all together, 1: a stream, 2: a consumer
    object_id     int not null,             -- 0 for all together
    step          int not null,             -- seconds
    at            timestamptz not null,
    published     bigint,                   -- null if unknown, as in the first sample of a process
    finished      bigint,
    lag           bigint,
    lag_seconds   real,
    in_flight     bigint,
    parked        bigint,
    blocked       bigint,
    dead_letters  bigint,
    primary key (kind, object_id, at, step)
) with (autovacuum_vacuum_scale_factor = 0.05);
create index samples_by_age on headrace_internal.samples (step, at);
