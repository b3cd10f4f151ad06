-- Verifications compare captured tables with their streams, and repair them. They are backfills of another kind, see
-- functions/verifications.sql. Sources of one database can share a replication slot, see functions/captures.sql.
-- Locks: headrace_internal.backfills (access exclusive), headrace_internal.backfills (share),
--  headrace_internal.backfills (share row exclusive)

alter table headrace_internal.backfills
    add column kind text not null default 'backfill' check (kind in ('backfill', 'verification', 'repair')),
    add column differences json;    -- the result of a comparison: counts and examples

-- A comparison that is running has passed rows that may differ now. So another one may be queued behind it.
drop index headrace_internal.backfills_under_way;
create unique index backfills_under_way on headrace_internal.backfills (source_id, relation)
    where state in ('queued', 'running') and kind = 'backfill';
create unique index verifications_queued on headrace_internal.backfills (source_id, relation, kind) where state = 'queued' and kind <> 'backfill';

-- In mode `changes` a verification first reads the stream up to `folded`, and remembers the newest message of each row.
alter table headrace_internal.backfills add column folded bigint not null default 0;

create table headrace_internal.verified_rows (
    backfill_id  int not null references headrace_internal.backfills (id) on delete cascade,
    hash         bytea not null,            -- SHA-256 of the values of the row's key
    key          text collate "C" not null, -- these values, as a JSON array
    seq          bigint not null,           -- of the newest message
    digest       bytea,                     -- SHA-256 of its record. Null if it lacks values that did not change
    gone         boolean not null,          -- whether the row is deleted, according to the message
    primary key (backfill_id, hash)
);
