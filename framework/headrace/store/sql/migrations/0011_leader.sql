-- Leader election, and one row from which publishers learn whether any consumer waits.

-- The leader's terms. Append-only like the cursors, because a row that is updated every second would grow a chain of dead versions. Unlogged,
-- because it is of no use after a crash.
create unlogged table headrace.leaders (
    version    bigint primary key,
    candidate  uuid not null,
    until      timestamptz not null
);

-- Until when a consumer waits for a stream's next message. Append-only, too.
create unlogged table headrace.waits (
    stream_id  int not null,
    until      timestamptz not null,
    primary key (stream_id, until)
);
alter table headrace.leaders set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
alter table headrace.waits set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
