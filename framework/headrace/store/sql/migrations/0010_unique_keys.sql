-- Unique keys: a message is not published while another one with the same unique key is pending, see
-- functions/unique.sql.
--
-- Locks: headrace_internal.streams (share row exclusive), headrace_internal.scheduled (access exclusive)

-- The last message that was published with each unique key. Append-only like the cursors, since a key may be published
-- many times a second: each message inserts the next version and deletes the last. Only publishers write it, and
-- maintenance, which deletes the rows of messages that are no longer pending.
create table headrace_internal.unique_keys (
    stream_id     int not null references headrace_internal.streams (id) on delete cascade,
    unique_key    text collate "C" not null constraint valid_unique_key check (octet_length(unique_key) between 1 and 256),
    version       bigint not null,
    seq           bigint,           -- null while the message is scheduled ...
    deliver_at    timestamptz,      -- ... for this time ...
    scheduled_id  bigint,           -- ... under this id in headrace_internal.scheduled
    primary key (stream_id, unique_key, version)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

alter table headrace_internal.scheduled add column unique_key text collate "C";
