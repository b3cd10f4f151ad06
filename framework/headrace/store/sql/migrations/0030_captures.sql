-- Verifications compare captured tables with their streams, and repair them. They are backfills of another kind, see
-- functions/verifications.sql. Sources of one database can share a replication slot, see functions/captures.sql.
-- Locks: headrace_internal.backfills (access exclusive), headrace_internal.backfills (share),
--  headrace_internal.backfills (share row exclusive), headrace_internal.captures (share row exclusive)

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

-- Slots that sources share. The slot on the server has a part of the id in its name, since another Headrace database may
-- capture from the same server, and name a slot alike.
create table headrace_internal.shared_slots (
    name  text primary key,     -- as the sources' settings name it
    uid   uuid not null default gen_random_uuid()
);

create table headrace_internal.verified_rows (
    backfill_id  int not null references headrace_internal.backfills (id) on delete cascade,
    hash         bytea not null,            -- SHA-256 of the values of the row's key
    key          text collate "C" not null, -- these values, as a JSON array
    seq          bigint not null,           -- of the newest message
    digest       bytea,                     -- SHA-256 of its record. Null if it lacks values that did not change
    gone         boolean not null,          -- whether the row is deleted, according to the message
    primary key (backfill_id, hash)
);

-- A difference that changes rows without a message in the WAL, such as an attached partition, is found by a comparison
-- with this, also after a restart. `fingerprint` is null for a table that was captured before there was this table.
create table headrace_internal.captured_tables (
    source_id    int not null references headrace_internal.captures (source_id) on delete cascade,
    relation     text not null,     -- as the source's settings name it
    fingerprint  json,
    resync       uuid,              -- the backfill that was requested for the last such difference
    primary key (source_id, relation)
);

insert into headrace_internal.captured_tables (source_id, relation)
    select distinct c.source_id, t.relation
    from headrace_internal.captures as c join headrace_internal.sources as o on o.id = c.source_id
         cross join lateral json_array_elements_text(o.settings -> 'tables') as t(relation)
    where exists (select from headrace_internal.capture_positions as p where p.source_id = c.source_id);
