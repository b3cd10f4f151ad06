-- Heartbeats of worker processes. Each process reports its state every few seconds, in one row that it overwrites.

-- Return whether the functions that read heartbeats can read one.
create or replace function headrace_internal.is_heartbeat(p_report json) returns boolean
language plpgsql stable as $$
begin
    return headrace_internal.has_fields(p_report, '{}')
       and coalesce(p_report::jsonb ->> 'revision', case when p_report::jsonb ? 'revision' then '' else '1' end) ~ '^[1-9][0-9]{0,8}$'
       and coalesce(p_report::jsonb ->> 'pid', '0') ~ '^[0-9]{1,9}$'
       and coalesce(jsonb_typeof(p_report::jsonb -> 'consumers'), 'array') = 'array';
end $$;

-- Write a process's heartbeat. It does not wait for the disk, since the table is unlogged, and a lost row is written
-- again in a moment.
-- p_role: the role with a grant that it belongs to, null for a member of the owner. Such a role overwrites only its own
-- rows. It has p_most_bytes at most. All roles together have p_most rows, and when there are more, the role with
-- the most rows loses the one that was not seen for the longest time.
create or replace function headrace_internal.write_heartbeat(
    p_id uuid, p_report json, p_now timestamptz, p_role oid, p_most int default 1000, p_most_bytes bigint default 16000000
) returns void
language plpgsql as $$
declare
    v_report   json;
    v_rows     bigint;
    v_all      bigint;
    v_own      bigint;
    v_bytes    bigint;
begin
    if octet_length(p_report::text) > 131072 then
        raise exception using errcode = 'HR004', message = format('A heartbeat has 128 KiB at most. This one has %s bytes.', octet_length(p_report::text));
    end if;
    if not headrace_internal.is_heartbeat(p_report) then
        raise exception using errcode = 'HR004',
            message = 'A heartbeat is a JSON object with numbers as revision and pid, an array as consumers, and no NUL character.';
    end if;
    v_report := p_report::jsonb::json;     -- of two fields of one name, all readers see the same
    if p_role is not null then
        select coalesce(sum(n.rows), 0), coalesce(max(n.rows) filter (where n.role_oid = p_role), 0),
               coalesce(max(n.bytes) filter (where n.role_oid = p_role), 0), max(n.rows)
            into v_all, v_own, v_bytes, v_rows from (
                select w.role_oid, count(*) as rows, sum(w.bytes) as bytes from headrace_internal.workers as w
                where w.role_oid is not null and w.id <> p_id group by w.role_oid) as n;
        if v_bytes + octet_length(v_report::text) > p_most_bytes or v_all >= p_most and v_rows <= v_own then
            raise exception using errcode = 'HR004', message = format(
                'The role %I has %s heartbeats of %s bytes, and may have no more: %s bytes for each role, %s heartbeats for all roles.',
                pg_get_userbyid(p_role), v_own, v_bytes, p_most_bytes, p_most);
        elsif v_all >= p_most then
            delete from headrace_internal.workers where id = (
                select w.id from headrace_internal.workers as w where w.role_oid = (
                    select n.role_oid from headrace_internal.workers as n where n.role_oid is not null group by n.role_oid order by count(*) desc limit 1)
                order by w.seen_at limit 1);
        end if;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    insert into headrace_internal.workers as w (id, seen_at, facts, role_oid, bytes)
        values (p_id, p_now, v_report, p_role, octet_length(v_report::text))
        on conflict (id) do update set seen_at = excluded.seen_at, facts = excluded.facts, bytes = excluded.bytes, role_oid = excluded.role_oid
            where p_role is null or w.role_oid = p_role;
    if not found then
        raise exception using errcode = 'HR004', message = format('The heartbeat %s belongs to another role.', p_id);
    end if;
end $$;

-- Write the heartbeat of a process that runs as a member of the owner.
create or replace function headrace_internal.record_heartbeat(p_id uuid, p_report json, p_now timestamptz default clock_timestamp()) returns void
language plpgsql as $$
begin
    perform headrace_internal.write_heartbeat(p_id, p_report, p_now, null);
end $$;

-- Delete the heartbeat of a process that ends cleanly, so that it is not reported as gone.
create or replace function headrace_internal.delete_heartbeat(p_id uuid) returns void
language sql as $$
    delete from headrace_internal.workers where id = p_id
$$;

-- Return the processes with a heartbeat, the longest running first. A process that was not seen for p_gone_after is
-- gone.
-- Granted: observe
create or replace function headrace_internal.worker_info(p_now timestamptz default clock_timestamp(), p_gone_after interval default '15 seconds')
returns table (id uuid, seen_at timestamptz, gone boolean, facts json)
language sql as $$
    select w.id, w.seen_at, w.seen_at < p_now - p_gone_after, w.facts
    from (select * from headrace_internal.workers order by seen_at desc limit 1000) as w
    order by w.facts ->> 'started_at', w.id
$$;

-- Delete the heartbeats of processes that have been gone for long. Returns the number deleted. The owners that no process
-- reports are deleted, too, unless a process reports only some of its own, or a recovery has emptied the table.
-- Granted: all
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
