-- jobs: redrive or purge many dead letters in the background, in chunks, by any server.
--
-- A server claims a job for some seconds. Each step redrives or purges one chunk of dead letters, moves the place of the job
-- and renews the claim, in one transaction that has locked the job's row. So a step that is rolled back leaves nothing,
-- and a server that lost its claim does no step more: the claims are counted, and a step names its own.
--
-- Dead letters that died after the job was created are left alone, so none of them is redriven twice by one job.

-- Create a job. p_choice: which dead letters, see headrace_internal.dead_letter_condition. p_total: how many these are, if it is
-- known. p_by: who asks for it, null for the role.
-- Granted: admin
create or replace function headrace_internal.create_job(
    p_stream text, p_name text, p_kind text, p_choice json, p_total bigint, p_by text, p_now timestamptz default clock_timestamp()
) returns uuid
language plpgsql as $$
declare
    c_most      constant int := 100;
    v_consumer  int;
    v_uid       uuid;
begin
    select c.id into v_consumer
        from headrace_internal.consumers as c join headrace_internal.streams as s on s.id = c.stream_id
        where s.name = p_stream and c.name = p_name;
    if not found then
        raise exception using errcode = 'HR002', message = format('The stream %L has no consumer %L.', p_stream, p_name);
    end if;
    perform pg_advisory_xact_lock(1212498508, -2);      -- so that two sessions don't both find room for one
    if (select count(*) from headrace_internal.jobs where state in ('waiting', 'running')) >= c_most then
        raise exception using errcode = 'HR006', message = format(
            '%s jobs wait or run already, which is the most: wait until some have ended, or cancel some.', c_most);
    end if;
    insert into headrace_internal.jobs (kind, stream, consumer, consumer_id, choice, total, created_at, created_by)
        values (p_kind, p_stream, p_name, v_consumer, p_choice, p_total, p_now, coalesce(p_by, session_user))
        returning uid into v_uid;
    return v_uid;
end $$;

-- Claim the job that has waited longest for its turn, for p_seconds. No row if there is nothing to do.
-- Granted: all
create or replace function headrace_internal.claim_job(p_seconds float8, p_now timestamptz default clock_timestamp())
returns table (id bigint, claim int, kind text, stream text, consumer text)
language sql as $$
    update headrace_internal.jobs as j
        set state = 'running', claims = j.claims + 1, claimed_until = p_now + make_interval(secs => p_seconds), worked_at = p_now
        where j.id = (
            select n.id from headrace_internal.jobs as n
            where n.state in ('waiting', 'running') and (n.claimed_until is null or n.claimed_until <= p_now)
            order by n.worked_at nulls first, n.id limit 1 for update skip locked)
        returning j.id, j.claims, j.kind, j.stream, j.consumer
$$;

-- Do one step of a job: examine the next p_examine dead letters, and redrive or purge those that match, at most p_chunk.
-- Renews the claim for p_seconds. Returns the state of the job: `running` if there is more to do, and `lost` if the claim
-- is no longer the caller's.
-- Granted: all
create or replace function headrace_internal.work_job(
    p_job bigint, p_claim int, p_chunk int, p_examine int, p_seconds float8, p_now timestamptz default clock_timestamp()
) returns text
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_job     headrace_internal.jobs;
    v_choice  json;
    v_step    record;
    v_count   bigint := 0;
begin
    select * into v_job from headrace_internal.jobs where id = p_job for update;
    if not found or v_job.state <> 'running' or v_job.claims <> p_claim then
        return coalesce(nullif(v_job.state, 'running'), 'lost');
    end if;
    if not exists (select from headrace_internal.consumers where id = v_job.consumer_id) then
        return headrace_internal.end_job(p_job, p_claim, 'The consumer was deleted.', p_now);
    end if;
    execute format($sql$
        select array_agg(seq order by seq) filter (where wanted) as seqs, max(seq) as reached, count(*) >= $4 or bool_or(full_up) as more from (
            select seq, wanted, count(*) filter (where wanted) over (order by seq) >= $3 as full_up,
                   count(*) filter (where wanted) over (order by seq rows between unbounded preceding and 1 preceding) as before
            from (select seq, (died_at <= $5 or headrace_internal.is_ahead(died_at, $6)) and (%s) as wanted from headrace_internal.dead_letters
                  where consumer_id = $1 and seq > $2 order by seq limit $4) as examined) as counted
        where before < $3
        $sql$, headrace_internal.dead_letter_condition(v_job.choice))
        into v_step using v_job.consumer_id, v_job.place, p_chunk, p_examine, v_job.created_at, p_now;
    if v_step.seqs is not null then
        v_choice := json_build_object('seqs', v_step.seqs);
        v_count := case v_job.kind when 'redrive' then headrace_internal.redrive_chosen(v_job.consumer_id, v_choice)
                                   else headrace_internal.discard_chosen(v_job.consumer_id, v_choice) end;
    end if;
    update headrace_internal.jobs
        set done = done + v_count, place = coalesce(v_step.reached, place), claimed_until = p_now + make_interval(secs => p_seconds)
        where id = p_job;
    if v_step.more then
        return 'running';
    end if;
    return headrace_internal.end_job(p_job, p_claim, null, p_now);
end $$;

-- End a job that is claimed: as done, or as failed if p_error is given. Returns its state, or `lost`.
-- Granted: all
create or replace function headrace_internal.end_job(p_job bigint, p_claim int, p_error text, p_now timestamptz default clock_timestamp()) returns text
language plpgsql as $$
declare
    v_state  text := case when p_error is null then 'done' else 'failed' end;
begin
    update headrace_internal.jobs set state = v_state, error = p_error, finished_at = p_now, claimed_until = null
        where id = p_job and claims = p_claim and state = 'running';
    return case when found then v_state else 'lost' end;
end $$;

-- Give a claim back, so that another job or server has its turn.
-- Granted: all
create or replace function headrace_internal.release_job(p_job bigint, p_claim int) returns void
language sql as $$
    update headrace_internal.jobs set claimed_until = null where id = p_job and claims = p_claim and state = 'running'
$$;

-- Cancel a job of a stream. What it has done stays done. Returns whether it was waiting or running.
-- Granted: admin
create or replace function headrace_internal.cancel_job(p_stream text, p_uid uuid, p_now timestamptz default clock_timestamp()) returns boolean
language plpgsql as $$
begin
    update headrace_internal.jobs set state = 'cancelled', finished_at = p_now, claimed_until = null
        where uid = p_uid and stream = p_stream and state in ('waiting', 'running');
    return found;
end $$;

-- Return jobs, the newest first: of these streams, or of all if p_streams is null, and only one if p_uid is given.
-- Granted: admin
create or replace function headrace_internal.job_page(p_streams text[], p_limit int, p_uid uuid default null)
returns table (id uuid, kind text, stream text, consumer text, state text, total bigint, done bigint, error text,
               created_at timestamptz, created_by text, finished_at timestamptz)
language sql as $$
    select j.uid, j.kind, j.stream, j.consumer, j.state, j.total, j.done, j.error, j.created_at, j.created_by, j.finished_at
    from headrace_internal.jobs as j
    where (p_streams is null or j.stream = any (p_streams)) and (p_uid is null or j.uid = p_uid)
    order by j.id desc limit p_limit
$$;

-- Delete jobs that ended a week ago, and the oldest ones beyond ten thousand. Returns the number deleted.
-- Granted: all
create or replace function headrace_internal.delete_old_jobs(p_now timestamptz default clock_timestamp()) returns int
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    c_most   constant int := 10000;
    v_count  int;
begin
    delete from headrace_internal.jobs where id in (
        select id from headrace_internal.jobs
        where finished_at < greatest(p_now - interval '7 days', (
            select finished_at from headrace_internal.jobs where finished_at is not null order by finished_at desc offset c_most limit 1))
        order by finished_at limit 1000);
    get diagnostics v_count = row_count;
    return v_count;
end $$;
