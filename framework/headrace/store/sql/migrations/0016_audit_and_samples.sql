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
