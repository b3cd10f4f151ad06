-- Large writes that commit once: what several tasks have staged becomes messages in one transaction, and is then remembered as done.

create schema headrace_staging;
comment on schema headrace_staging is 'Headrace: what is being written and not committed yet; may be emptied at any time';

-- A write is known by the id that its writer gave it: a streaming query's, which writes batch after batch, or that of one save.
create table headrace.writes (
    stream_id   int not null references headrace.streams (id) on delete cascade,
    write_id    text collate "C" not null,
    streaming   boolean not null,               -- whether there may be more batches, for as long as anybody likes
    staging     text,                           -- the table that its tasks fill, quoted and ready for format('%s'); null while there is none
    batch       bigint not null default -1,     -- the last that was committed: no batch up to this one is published again
    messages    bigint not null default 0,      -- published by all of them
    begun_at    timestamptz not null default clock_timestamp(),
    touched_at  timestamptz not null default clock_timestamp(),
    primary key (stream_id, write_id)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Where a segment was dropped, the ranges of the others tell; where messages were removed one by one, nothing else does.
alter table headrace.streams add column trimmed bigint not null default 0;     -- the last seq that was removed so
