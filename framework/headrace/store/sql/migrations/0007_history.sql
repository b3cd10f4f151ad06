-- What tells that history was rewound: a crash, a failover or a restore took back what had been committed and told, so that seqs, lease
-- ids, xids and ids of consumers are given again. Whatever is remembered outside of the database is tied to this.

-- Unlogged, so that Postgres empties it whenever it recovers: after a crash, at a promotion, from a base backup, at a point in time. A
-- restart in order keeps it. One row at most: see headrace.begin_timeline.
create unlogged table headrace.history (
    id     uuid primary key default gen_random_uuid(),
    since  timestamptz not null default clock_timestamp(),
    single boolean not null unique default true check (single)
);
insert into headrace.history default values;

-- Witnesses of transactions of services: a row that each writes itself as the last thing before its COMMIT. An xid alone is none, since after a
-- crash or a failover the server may give it to somebody else. Without a foreign key or an update; the janitor removes them after a while.
create table headrace.commits (
    xid    xid8 not null,
    nonce  uuid not null,
    at     timestamptz not null default clock_timestamp(),
    primary key (xid, nonce)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Where a person has put a consumer ahead of its stream, and it is still there: see headrace.require_drawn.
alter table headrace.cursors add column sought bigint;
update headrace.cursors set sought = position;
