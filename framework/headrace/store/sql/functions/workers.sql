-- Heartbeats of worker processes. Each process reports its state every few seconds, in one row that it overwrites.

-- Write a process's heartbeat. It does not wait for the disk, since the table is unlogged, and a lost row is written
-- again in a moment.
create or replace function headrace_internal.record_heartbeat(p_id uuid, p_report json, p_now timestamptz default clock_timestamp()) returns void
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into headrace_internal.workers as w (id, seen_at, facts) values (p_id, p_now, p_report)
        on conflict (id) do update set seen_at = excluded.seen_at, facts = excluded.facts;
end $$;

-- Delete the heartbeat of a process that ends cleanly, so that it is not reported as gone.
create or replace function headrace_internal.delete_heartbeat(p_id uuid) returns void
language sql as $$
    delete from headrace_internal.workers where id = p_id
$$;

-- Return the processes with a heartbeat, the longest running first. A process that was not seen for p_gone_after is
-- gone.
create or replace function headrace_internal.worker_info(p_now timestamptz default clock_timestamp(), p_gone_after interval default '15 seconds')
returns table (id uuid, seen_at timestamptz, gone boolean, facts json)
language sql stable as $$
    select w.id, w.seen_at, w.seen_at < p_now - p_gone_after, w.facts
    from (select * from headrace_internal.workers order by seen_at desc limit 1000) as w
    order by w.facts ->> 'started_at', w.id
$$;

-- Delete the heartbeats of processes that have been gone for long. Returns the number deleted. The owners that no process
-- reports are deleted, too, unless a process reports only some of its own, or a recovery has emptied the table.
create or replace function headrace_internal.delete_old_heartbeats(p_now timestamptz default clock_timestamp(), p_after interval default '60 seconds') returns int
language plpgsql as $$
declare
    v_count  int;
begin
    perform set_config('synchronous_commit', 'off', true);
    delete from headrace_internal.workers where seen_at < p_now - p_after;
    get diagnostics v_count = row_count;
    delete from headrace_internal.owners as o
        where o.since < p_now - p_after
          and exists (select from headrace_internal.history as h where h.since < p_now - p_after)
          and not exists (select from headrace_internal.workers as w where w.facts ->> 'more_consumers' <> '0')
          and o.owner::text not in (
              select c.entry ->> 'owner' from headrace_internal.workers as w
              cross join lateral json_array_elements(
                  case json_typeof(w.facts -> 'consumers') when 'array' then w.facts -> 'consumers' else '[]' end) as c(entry)
              where c.entry ->> 'owner' is not null);
    return v_count;
end $$;
