-- Functions that read hot tables only by their indexes turn other scans off, and that adds a cost of ten thousand
-- million to every plan. A server with stock settings (jit = on) would compile each of their statements, which takes
-- a hundred times as long as running them, so every function that turns a kind of scan off turns jit off, too.

do $$
declare
    v_alter  text;
begin
    for v_alter in
        select format('alter function %s set jit = off', p.oid::regprocedure) from pg_proc as p
        where p.pronamespace in ('headrace'::regnamespace, 'headrace_internal'::regnamespace) and p.proconfig && '{enable_seqscan=off,enable_sort=off}'
          and pg_has_role(p.proowner, 'usage')
    loop
        execute v_alter;
    end loop;
end $$;

-- The functions that are called from outside run with a search path of their own. Otherwise an object of another
-- schema could take the place of one of pg_catalog: one of the same name in a schema that the path names before
-- pg_catalog, a function in any schema of the path whose arguments fit better, or a temporary table. The functions
-- that they call inherit the path. It is set once for each call, since it takes some microseconds on servers before
-- PostgreSQL 17, and a lease call makes some twenty calls.

do $$
declare
    -- Called from outside, and by other functions as well.
    c_called_both_ways  constant text[] := '{abort_write,abort_writes,ack_at_commit,commit_write,trust_staging,apply_grants,cancel_messages,completions_of_messages,remove_stale_grants,dead_letter_page,declare_stream,discard_chosen,end_job,range_end,range_mark,reclaim,redrive_chosen,request_backfill,require_stream,resolved_position,seek,source_info,
                                             consumer_info,live_revision,publish_message,publish_messages,settle_outcomes,stream_info,subscribe_consumers,transaction_status,worker_info}';
    v_bodies  text := (select string_agg(prosrc, ' ') from pg_proc where pronamespace = 'headrace_internal'::regnamespace
                                                                      or pronamespace = 'headrace'::regnamespace);
    v_alter   text;
begin
    for v_alter in
        select format('alter function %s set search_path = pg_catalog, pg_temp', p.oid::regprocedure) from pg_proc as p
        where pg_has_role(p.proowner, 'usage')
          and (p.pronamespace = 'headrace'::regnamespace
               or p.pronamespace = 'headrace_internal'::regnamespace
                  and (p.proname = any (c_called_both_ways) or strpos(v_bodies, 'headrace_internal.' || p.proname || '(') = 0))
    loop
        execute v_alter;
    end loop;
end $$;

-- Strings with backslashes mean something else where standard_conforming_strings is off, so the functions that have
-- any, none of which is called once per message, turn it on. Strings with the prefix E always mean the same.

do $$
declare
    v_alter  text;
begin
    for v_alter in
        select format('alter function %s set standard_conforming_strings = on', p.oid::regprocedure) from pg_proc as p
        where p.pronamespace in ('headrace'::regnamespace, 'headrace_internal'::regnamespace) and pg_has_role(p.proowner, 'usage')
          and strpos(p.prosrc, chr(92)) > 0 and strpos(p.prosrc, 'E''') = 0
    loop
        execute v_alter;
    end loop;
end $$;

-- Every role may execute every new function, unless that is revoked. The public functions and those that run as the owner
-- are for roles with a grant. Roles that were given the schema headrace by hand keep its functions. All other functions
-- run with the rights of the caller, in a schema that only the owner may use.

do $$
declare
    v_function  regprocedure;
    v_role      text;
begin
    execute format('revoke execute on function %s from public', (headrace_internal.owned_objects('{headrace,headrace_granted}')).functions);
    for v_function in
        select oid from pg_proc where pronamespace = 'headrace_internal'::regnamespace and prosecdef and proname <> 'leave_witness'
          and pg_has_role(proowner, 'usage')
    loop
        execute format('revoke execute on function %s from public', v_function);
    end loop;
    -- The views of the schema headrace call these. They open nothing by themselves.
    grant execute on function headrace_granted.is_direct, headrace_granted.streams_of, headrace_granted.view_streams,
        headrace_granted.view_consumers, headrace_granted.view_capture, headrace_granted.view_workers to public;
    for v_role in
        select distinct case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end
        from pg_namespace as n cross join aclexplode(n.nspacl) as a where n.nspname = 'headrace' and a.grantee <> n.nspowner
    loop
        execute format('grant execute on function %s to %s', (headrace_internal.owned_objects('{headrace}')).functions, v_role);
    end loop;
    perform headrace_internal.remove_stale_grants();
    perform headrace_internal.apply_grants();
end $$;
