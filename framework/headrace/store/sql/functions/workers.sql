-- Who is at work. Each process tells of itself every few seconds, in one row that it writes anew.

-- Nothing waits for the disk: the table is unlogged, and what is lost is told again in a moment.
create function headrace.tell_worker(p_id uuid, p_facts json, p_now timestamptz default clock_timestamp()) returns void
language plpgsql as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into headrace.workers as w (id, seen_at, facts) values (p_id, p_now, p_facts)
        on conflict (id) do update set seen_at = excluded.seen_at, facts = excluded.facts;
end $$;

-- A process ends cleanly: nobody need wonder where it is.
create function headrace.worker_left(p_id uuid) returns void
language sql as $$
    delete from headrace.workers where id = p_id
$$;

-- The processes that have told of themselves, the longest at work first. What was not seen for p_patience is gone.
create function headrace.worker_info(p_now timestamptz default clock_timestamp(), p_patience interval default '15 seconds')
returns table (id uuid, seen_at timestamptz, gone boolean, facts json)
language sql stable as $$
    select w.id, w.seen_at, w.seen_at < p_now - p_patience, w.facts
    from (select * from headrace.workers order by seen_at desc limit 1000) as w
    order by w.facts ->> 'started_at', w.id
$$;

-- Forget those that have been gone for long. Returns how many.
create function headrace.forget_workers(p_now timestamptz default clock_timestamp(), p_after interval default '60 seconds') returns int
language plpgsql as $$
declare
    v_count  int;
begin
    perform set_config('synchronous_commit', 'off', true);
    delete from headrace.workers where seen_at < p_now - p_after;
    get diagnostics v_count = row_count;
    return v_count;
end $$;
