-- Large writes that commit once: what several tasks have staged becomes messages in one transaction, and is then remembered as done.

create schema headrace_staging;

-- A write is known by the id that its writer gave it: a streaming query's, which writes batch after batch, or that of one save.
create table headrace.writes (
    stream_id   int not null references headrace.streams (id) on delete cascade,
    write_id    text collate "C" not null,
    staging     text not null,                  -- the table that its tasks fill, quoted and ready for format('%s'); it may be gone
    batch       bigint not null default -1,     -- the last that was committed: no batch up to this one is published again
    messages    bigint not null default 0,      -- published by all of them
    begun_at    timestamptz not null default clock_timestamp(),
    touched_at  timestamptz not null default clock_timestamp(),
    primary key (stream_id, write_id)
);
