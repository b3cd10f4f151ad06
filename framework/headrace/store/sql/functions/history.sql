-- history: whether what was read before is still so, or was taken back since.
--
-- What is committed stays, but for three things that rewind it: a crash, when commits did not wait for the disk; a failover to a server that
-- lagged; a restore. Then seqs and ids are given again, to others. Whoever remembers contents outside of the database remembers the history's
-- identity with them, and lets go of them when it is another one.
--
-- There are two identities. The TIMELINE is a random id in an unlogged table, which Postgres empties at each recovery. It is mixed with the
-- file of the table (a database that took the place of another one, a restore over a schema that was dropped) and the row's transaction (a
-- restore of the data alone). An orderly restart keeps it. Leases belong to a timeline: an outcome counts only in the one that its lease was
-- given in. The HISTORY is the timeline mixed with the start of the server, because a copy that was taken while the server was stopped comes
-- back without a recovery. Contents belong to a history: a change that was none costs a cache.

-- The timeline by the row of headrace.history and its xmin; null for no row. Inlined where it is called.
create function headrace.timeline_identity(p_id uuid, p_xmin xid) returns uuid
language sql stable as $$
    select case when p_id is not null then
        md5(concat_ws('/', p_id, p_xmin, pg_relation_filepath('headrace.history'::regclass)))::uuid
    end
$$;

-- The history of a timeline. Not by the text of the time, which differs with the settings of the session.
create function headrace.history_identity(p_timeline uuid) returns uuid
language sql stable as $$
    select case when p_timeline is not null then
        md5(concat_ws('/', p_timeline, extract(epoch from pg_postmaster_start_time())))::uuid
    end
$$;

-- Begin a timeline, if there is none. It is a call of its own: were it part of a lease call, that could be frozen with its client, and all other
-- calls would wait for it.
create function headrace.begin_timeline() returns void
language sql as $$
    insert into headrace.history default values on conflict do nothing
$$;
