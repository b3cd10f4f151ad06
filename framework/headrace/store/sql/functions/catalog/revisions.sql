-- Revisions of the schema, and what the running processes know.
--
-- While old and new processes run side by side, a new process must not do what an old one can't bear. Such a thing is
-- a feature: a row of headrace_internal.features, which a migration inserts. It is off until each running process has
-- the revision that it needs. Then the janitor switches it on, for good. From then on older processes are refused at
-- their start.

-- Return the lowest revision of the running processes. Null if none runs. A process reports its revision with each
-- heartbeat.
-- Granted: all
create or replace function headrace_internal.live_revision(p_now timestamptz default clock_timestamp(), p_gone_after interval default '60 seconds') returns int
language sql as $$
    select min(coalesce((w.facts ->> 'revision')::int, 1)) from headrace_internal.workers as w where w.seen_at >= p_now - p_gone_after
$$;

-- Return whether a feature is switched on. It is false for one that doesn't exist.
-- Granted: all
create or replace function headrace_internal.feature_is_on(p_name text) returns boolean
language sql as $$
    select exists (select from headrace_internal.features where name = p_name and switched_on_at is not null)
$$;

-- Switch on the features that all running processes know. Returns their names.
-- Granted: all
create or replace function headrace_internal.switch_on_features(p_now timestamptz default clock_timestamp(), p_gone_after interval default '60 seconds') returns setof text
language plpgsql as $$
declare
    v_live  int;
    v_name  text;
begin
    if not exists (select from headrace_internal.features where switched_on_at is null) then
        return;
    end if;
    -- A recovery empties the table of heartbeats. For a while it may lack processes that run.
    if not exists (select from headrace_internal.history where since <= p_now - p_gone_after) then
        return;
    end if;
    -- A process that starts writes its heartbeat, and then checks whether the schema serves it. If the heartbeat is
    -- written before this lock, it is counted below. If it is written after it, the check sees what is decided here.
    lock table headrace_internal.workers in share row exclusive mode;
    -- A table that is full lacks processes, see write_heartbeat.
    if (select count(*) from headrace_internal.workers where role_oid is not null) >= 1000 then
        return;
    end if;
    v_live := headrace_internal.live_revision(p_now, p_gone_after);
    for v_name in
        update headrace_internal.features set switched_on_at = p_now
        where switched_on_at is null and needs <= coalesce(v_live, (select max(version) from headrace_internal.migrations))
        returning name
    loop
        return next v_name;
    end loop;
    update headrace_internal.migrations as m set serves_from = f.needs
        from (select max(needs) as needs from headrace_internal.features where switched_on_at is not null) as f
        where m.version = (select max(version) from headrace_internal.migrations) and m.serves_from < f.needs;
end $$;
