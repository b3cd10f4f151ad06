-- captured_tables: what the tables of a source consisted of when the process that captures it last looked at them.

-- Return what is stored of a source's tables. `unfinished`: whether the last requested resync is under way. `failure`: the
-- reason why it failed, until the whole table was read by another backfill.
-- Granted: all
create or replace function headrace_internal.captured_tables(p_source int)
returns table (relation text, fingerprint json, unfinished boolean, failure text)
language plpgsql as $$
begin
    return query select t.relation, t.fingerprint, coalesce(b.state in ('queued', 'running'), false), case when b.state = 'failed' then b.reason end
        from headrace_internal.captured_tables as t
        left join headrace_internal.backfills as b on b.uid = t.resync and not exists (
            select from headrace_internal.backfills as later where later.source_id = b.source_id and later.relation = b.relation
                and later.id > b.id and later.state = 'done' and later.condition is null)
        where t.source_id = p_source;
end $$;

-- Store what a table consists of, for the process that captures the source. A resync belongs to the same transaction.
-- Granted: all
create or replace function headrace_internal.record_captured_table(
    p_source int, p_epoch bigint, p_relation text, p_fingerprint json, p_resync uuid
) returns void
language plpgsql as $$
begin
    perform headrace_internal.require_capture_lease(p_source, p_epoch);
    insert into headrace_internal.captured_tables as t (source_id, relation, fingerprint, resync)
        values (p_source, p_relation, p_fingerprint, p_resync)
        on conflict (source_id, relation) do update
            set fingerprint = excluded.fingerprint, resync = coalesce(excluded.resync, t.resync);
end $$;

-- Forget the tables of a source that its settings no longer name.
-- Granted: all
create or replace function headrace_internal.forget_captured_tables(p_source int, p_epoch bigint, p_relations text[]) returns void
language plpgsql as $$
begin
    perform headrace_internal.require_capture_lease(p_source, p_epoch);
    delete from headrace_internal.captured_tables where source_id = p_source and relation = any (p_relations);
end $$;
