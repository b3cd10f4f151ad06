-- history: identities by which a process detects that commits it read were reverted since.
--
-- A commit is permanent, except for three events that revert it: a crash when commits did not wait for the disk, a
-- failover to a server that lagged, and a restore. After that, seqs and ids are assigned again, to other rows. A
-- process that keeps contents outside of the database keeps the history's identity with them, and discards them when
-- the identity changes.
--
-- There are two identities. The TIMELINE is a random id in an unlogged table, which Postgres empties at each
-- recovery. It is mixed with the oids of the database (which detects a database that replaced another one) and of the
-- table (which detects a restore over a schema that was dropped), and with the row's transaction (which detects a restore
-- of the data alone). An orderly restart keeps it, and so do VACUUM FULL and CLUSTER, which give the table another file.
--
-- The HISTORY is the timeline mixed with the start time of the server, because a copy that was taken while the server
-- was stopped comes back without a recovery. Contents belong to a history. If it changes without need, that costs
-- only a cache. Leases belong to a history, too: an outcome has an effect only in the history in which its owner has
-- compared its leases with the store, see check_in.sql. Processes of release 0.1 compare nothing, so they name the timeline.

-- Return the timeline for the row of headrace_internal.history and its xmin. Null for no row. The function is inlined where it
-- is called. The parts are those of the table's path at its creation, so that the timeline stays when release 0.1 is
-- upgraded: the oid of the database is the last folder of that path.
-- Granted: any
create or replace function headrace_internal.timeline_identity(p_id uuid, p_xmin xid) returns uuid
language sql stable as $$
    select case when p_id is not null then
        pg_catalog.md5(pg_catalog.concat_ws('/', p_id, p_xmin, 'base',
            pg_catalog.split_part(pg_catalog.pg_relation_filepath('headrace_internal.history'::regclass), '/', -2),
            'headrace_internal.history'::regclass::oid))::uuid
    end
$$;

-- Return the history of a timeline. It does not use the text of the time, which differs with the settings of the
-- session.
-- Granted: any
create or replace function headrace_internal.history_identity(p_timeline uuid) returns uuid
language sql stable as $$
    select case when p_timeline is not null then
        pg_catalog.md5(pg_catalog.concat_ws('/', p_timeline, extract(epoch from pg_catalog.pg_postmaster_start_time())))::uuid
    end
$$;

-- Return p_identity if it is that of the history. Otherwise return the timeline, for the processes that name it. It is
-- inlined where it is called.
create or replace function headrace_internal.fence_identity(p_id uuid, p_xmin xid, p_identity uuid) returns uuid
language sql stable as $$
    select case when p_identity = headrace_internal.history_identity(headrace_internal.timeline_identity(p_id, p_xmin)) then p_identity
                else headrace_internal.timeline_identity(p_id, p_xmin) end
$$;

-- Begin a timeline, if there is none. It is a separate call. As part of a lease call it could be frozen with its
-- client, and all other calls would wait for it.
-- Granted: any
create or replace function headrace_internal.begin_timeline() returns void
language sql as $$
    insert into headrace_internal.history default values on conflict do nothing
$$;
