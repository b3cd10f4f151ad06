-- Verifications compare captured tables with their streams, and repair them. They are backfills of another kind, see
-- functions/verifications.sql. Sources of one database can share a replication slot, see functions/captures.sql.
-- Locks: headrace_internal.backfills (access exclusive)

alter table headrace_internal.backfills
    add column kind text not null default 'backfill' check (kind in ('backfill', 'verification', 'repair')),
    add column differences json;    -- the result of a comparison: counts and examples

-- A comparison that is running has passed rows that may differ now. So another one may be queued behind it.
drop index headrace_internal.backfills_under_way;
create unique index backfills_under_way on headrace_internal.backfills (source_id, relation)
    where state in ('queued', 'running') and kind = 'backfill';
create unique index verifications_queued on headrace_internal.backfills (source_id, relation, kind) where state = 'queued' and kind <> 'backfill';
