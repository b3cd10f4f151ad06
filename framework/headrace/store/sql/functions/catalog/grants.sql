-- grants: what roles other than the owner may do.
--
-- The owner of the schema, its members and superusers call headrace_internal, with their own rights, and nothing here
-- costs them anything. Any other role has no right there. It calls the function of the same name in headrace_granted,
-- which runs as the owner (security definer), with a search_path of its own, and first checks headrace_internal.grants.
-- Those functions are generated in _granted.sql, from the list of what each privilege allows.
--
-- The role that counts is the role of the session: that of SET ROLE, or else the one that logged in. Inside of a
-- function that runs as its owner, current_user is that owner, so it can't be asked there. A superuser has no grant,
-- even as a member: a function of any other user runs in a superuser's session when autovacuum evaluates an index
-- expression, and that must open nothing.

-- Whether the caller calls headrace_internal itself, or reads a whole view. A role that was given rights there by hand
-- does, unless it has a grant, too. The functions of the schema headrace contain the same expressions, because a call
-- costs more than they do. The search_path is set, because the views rely on the result.
-- p_view: the caller needs its own right to read it, so that a view that a role with a grant creates opens nothing.
create or replace function headrace_granted.is_direct(p_view text default null) returns boolean
language sql stable set search_path = pg_catalog, pg_temp as $$
    select has_schema_privilege('headrace_internal', 'create')
        or (has_schema_privilege('headrace_internal', 'usage') or has_table_privilege(
                (select c.oid from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
                 where n.nspname = 'headrace' and c.relname = p_view), 'select'))
        and not exists (
            select from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
            where n.nspname = 'headrace_granted' and p.proname = 'lease' and has_function_privilege(p.oid, 'execute'))
$$;

-- The privileges of which one suffices.
create or replace function headrace_internal.sufficient_privileges(p_privilege text) returns text[]
language plpgsql immutable as $$
begin
    return case p_privilege when 'publish' then '{publish,admin}' when 'consume' then '{consume,admin}'
                            when 'observe' then '{observe,consume,admin}' when 'admin' then '{admin}'
                            else '{publish,consume,observe,admin}' end::text[];
end $$;

-- Return the number of the role that counts. Null for a superuser: of all roles, only a superuser may truncate a table of
-- the system, so it needs no query, which each publish would pay for.
-- The setting role keeps a name, which another role may have by now, so the session has to be a member of that one.
create or replace function headrace_internal.granted_role_number() returns oid
language plpgsql stable as $$
declare
    v_set   text := current_setting('role');
    v_role  oid := to_regrole(quote_ident(case v_set when 'none' then session_user else v_set end));
begin
    return case when has_table_privilege(v_role, 'pg_catalog.pg_authid'::regclass, 'truncate') is false
                     and (v_set = 'none' or pg_has_role(session_user, v_role, 'member')) then v_role end;
end $$;

-- Return the streams on which the role of the session has a privilege, or 'any'. 0 stands for all streams. Null unless
-- it has one.
create or replace function headrace_internal.granted_streams(p_privilege text) returns int[]
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    v_role        oid := headrace_internal.granted_role_number();
    v_privileges  text[] := headrace_internal.sufficient_privileges(p_privilege);
begin
    return (
        select array_agg(distinct g.stream_id)
        from headrace_internal.grants as g
        where g.privilege = any (v_privileges) and g.bound
          and (g.role_oid = v_role or pg_has_role(v_role, g.role_oid, 'usage')));
end $$;

-- Return whether the role of the session has a privilege on a stream: by its id, 0 for all streams, null for none.
-- Most roles have their own grant, which the primary key finds. The others inherit one.
create or replace function headrace_internal.is_granted(p_privilege text, p_stream int) returns boolean
language plpgsql as $$
declare
    v_role        oid := headrace_internal.granted_role_number();
    v_privileges  text[] := headrace_internal.sufficient_privileges(p_privilege);
    v_streams     int[] := array[0, p_stream];
begin
    perform from headrace_internal.grants as g
        where g.stream_id = any (v_streams) and g.role_oid = v_role and g.privilege = any (v_privileges) and g.bound;
    if not found then
        perform from headrace_internal.grants as g
            where g.stream_id = any (v_streams) and g.privilege = any (v_privileges) and g.bound and pg_has_role(v_role, g.role_oid, 'usage');
    end if;
    return found;
end $$;

-- Return a word of a command line, to be copied from an error into a shell.
create or replace function headrace_internal.shell_word(p_text text) returns text
language plpgsql immutable as $$
begin
    return case when p_text ~ '^[[:alnum:]_.@:][[:alnum:]_.@:-]*$' then p_text
                else chr(39) || replace(p_text, chr(39), chr(39) || '\' || chr(39) || chr(39)) || chr(39) end;
end $$;

-- Raise unless the role of the session has a privilege. p_stream: as for is_granted. p_name: the stream's name in the
-- error.
create or replace function headrace_internal.require_grant(p_privilege text, p_stream int, p_name text default null) returns void
language plpgsql as $$
declare
    v_role  text;
    v_name  text;
begin
    if headrace_internal.is_granted(p_privilege, p_stream) then
        return;
    end if;
    v_role := case current_setting('role') when 'none' then session_user else current_setting('role') end;
    v_name := coalesce(left(p_name, 80), (select name from headrace_internal.streams where id = p_stream));
    raise exception using errcode = 'insufficient_privilege', message = format(
        'The role %I may not %s%s. A member of the owner can allow it: %s',
        v_role,
        case p_privilege when 'publish' then 'publish to' when 'consume' then 'consume' when 'observe' then 'see the figures of'
                         else 'administer' end,
        case when v_name is null then ' all streams' else format(' the stream %L', v_name) end,
        case when exists (select from headrace_internal.grants where role = v_role and not bound)
             then 'headrace grant restore, since the grants came with a dump of another server'
             else format('headrace grant %s %s%s', p_privilege, headrace_internal.shell_word(v_role),
                         coalesce(' --stream ' || headrace_internal.shell_word(v_name), '')) end);
end $$;

-- As require_grant, for a stream by its name. Without the privilege on all streams, one that does not exist gets the
-- same answer as one that the role may not use.
create or replace function headrace_internal.require_grant_by_name(p_privilege text, p_name text) returns void
language plpgsql as $$
declare
    v_stream  int;
begin
    select id into v_stream from headrace_internal.streams where name = p_name;
    perform headrace_internal.require_grant(p_privilege, v_stream, coalesce(p_name, ''));
end $$;

-- As require_grant, for the streams of consumers. One that does not exist is left to the function that is called.
create or replace function headrace_internal.require_grant_of_consumers(p_privilege text, p_consumers int[]) returns void
language plpgsql as $$
declare
    v_stream  int;
begin
    for v_stream in select distinct stream_id from headrace_internal.consumers where id = any (p_consumers) loop
        perform headrace_internal.require_grant(p_privilege, v_stream);
    end loop;
end $$;

-- Raise unless the role of the session has a privilege, or 'any', on any stream.
create or replace function headrace_internal.require_grant_somewhere(p_privilege text) returns void
language plpgsql as $$
begin
    if headrace_internal.granted_streams(p_privilege) is null then
        perform headrace_internal.require_grant(case p_privilege when 'any' then 'observe' else p_privilege end, 0);
    end if;
end $$;

-- Raise unless the role of the session has any privilege.
create or replace function headrace_internal.require_any_grant() returns void
language plpgsql as $$
begin
    perform headrace_internal.require_grant_somewhere('any');
end $$;

-- The streams that a role may see with a privilege, for the views. It runs as the owner.
create or replace function headrace_granted.streams_of(p_privilege text) returns int[]
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_streams  int[] := headrace_internal.granted_streams(p_privilege);
begin
    if 0 = any (v_streams) then
        return array(select id from headrace_internal.streams) || 0;
    end if;
    return v_streams;
end $$;

-- The settings of a consumer as its readers may see them: a push consumer's secrets are for its administrators.
create or replace function headrace_internal.settings_for_readers(p_stream text, p_settings json) returns json
language plpgsql as $$
begin
    if json_typeof(p_settings -> 'push') is distinct from 'object'
       or headrace_internal.is_granted('admin', (select id from headrace_internal.streams where name = p_stream)) then
        return p_settings;
    end if;
    return (p_settings::jsonb || jsonb_build_object('push', (p_settings::jsonb -> 'push') - 'secret' - 'headers'
        || jsonb_build_object('url', regexp_replace(p_settings #>> '{push,url}', '^([a-z]+://)([^/@]*@)?([^/?#]*).*$', '\1\3/'))))::json;
end $$;

-- A heartbeat as its readers may see it: a failure that opened a breaker may quote a message.
create or replace function headrace_internal.heartbeat_for_readers(p_facts json) returns json
language plpgsql as $$
begin
    if headrace_internal.is_granted('consume', 0) then
        return p_facts;
    end if;
    return (p_facts::jsonb || jsonb_build_object('consumers', coalesce((
        select jsonb_agg(case jsonb_typeof(c.entry) when 'object' then c.entry - 'breaker_reason' else c.entry end order by c.place)
        from jsonb_array_elements(p_facts::jsonb -> 'consumers') with ordinality as c(entry, place)), '[]')))::json;
end $$;

-- The settings of a consumer, by its id.
-- Granted: consume
create or replace function headrace_internal.settings_of_consumer(p_consumer int) returns json
language sql as $$
    select headrace_internal.consumer_settings(c) from headrace_internal.consumers as c where c.id = p_consumer
$$;

-- As open_inserts, for a table that is named by text.
-- Granted: all
create or replace function headrace_internal.open_inserts_of(p_table text, out at timestamptz, out holders text[])
language sql as $$
    select * from headrace_internal.open_inserts(p_table::regclass)
$$;

-- Create a stream unless it exists. Returns its id.
create or replace function headrace_internal.stream_for(p_name text, p_settings json) returns int
language sql as $$
    select stream_id from headrace_internal.declare_stream(p_name, p_settings)
$$;

-- What a role without `admin` may declare: a stream that exists, and a consumer as it is, so a worker starts with the
-- same code as under the owner.

create or replace function headrace_granted.declare_stream(p_name text, p_settings json, out stream_id int, out new boolean)
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    select id, false into stream_id, new from headrace_internal.streams where name = p_name;
    if stream_id is not null and headrace_internal.is_granted('any', stream_id) then
        return;
    end if;
    perform headrace_internal.require_grant('admin', 0);
    select * into stream_id, new from headrace_internal.declare_stream(p_name, p_settings);
end $$;

create or replace function headrace_granted.stream_for(p_name text, p_settings json) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    return (select stream_id from headrace_granted.declare_stream(p_name, p_settings));
end $$;

create or replace function headrace_granted.edit_stream(p_name text, p_settings json) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_before  text;
begin
    perform headrace_internal.require_grant_by_name('any', p_name);
    if headrace_internal.is_granted('admin', (select id from headrace_internal.streams where name = p_name)) then
        perform headrace_internal.edit_stream(p_name, p_settings);
        return;
    end if;
    select headrace_internal.stream_settings(s)::text into v_before from headrace_internal.streams as s where s.name = p_name;
    perform headrace_internal.edit_stream(p_name, p_settings);
    if v_before is distinct from (
        select headrace_internal.stream_settings(s)::text from headrace_internal.streams as s where s.name = p_name) then
        perform headrace_internal.require_grant_by_name('admin', p_name);     -- raises, which undoes the change
    end if;
end $$;

-- The heartbeats of a role are its own. One that is dated ahead would count as running for ever.

create or replace function headrace_granted.record_heartbeat(p_id uuid, p_report json, p_now timestamptz default clock_timestamp()) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform headrace_internal.require_any_grant();
    perform headrace_internal.write_heartbeat(p_id, p_report, least(p_now, clock_timestamp()), headrace_internal.granted_role_number());
end $$;

create or replace function headrace_granted.delete_heartbeat(p_id uuid) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform headrace_internal.require_any_grant();
    delete from headrace_internal.workers where id = p_id and role_oid = headrace_internal.granted_role_number();
end $$;

-- The audit log is for roles that can change something. An entry has the role of the session, and the time of now.

create or replace function headrace_granted.record_change(
    p_actor text, p_via text, p_action text, p_of_stream text, p_kind text, p_name text, p_details json,
    p_now timestamptz default clock_timestamp()
) returns bigint
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform headrace_internal.require_grant_somewhere('admin');
    if coalesce(p_via in ('http', 'console', 'cli', 'app') and length(p_action) <= 100 and length(p_kind) <= 100, false) is false
          or length(p_of_stream) > 500 or octet_length(p_details::text) > 16000 or not headrace_internal.has_fields(p_details, '{}') then
        raise exception using errcode = 'HR004', message = 'An entry of the audit log has a known way, an action, a kind, and a JSON object of 16 kB at most.';
    end if;
    return headrace_internal.record_change(p_actor, p_via, p_action, p_of_stream, p_kind, p_name, p_details);
end $$;

-- Reads for the views of the schema headrace, whose functions run as the caller.

create or replace function headrace_granted.view_streams(p_stream text)
returns table (id uuid, name text, created_at timestamptz, updated_at timestamptz, settings json, first_seq bigint, last_seq bigint, messages bigint, size bigint,
               segments bigint, consumers bigint, scheduled bigint, next_scheduled timestamptz, "full" boolean)
language plpgsql as $$
begin
    if has_schema_privilege('headrace_internal', 'usage') then
        return query select * from headrace_internal.stream_info(p_stream);
    else
        return query select * from headrace_granted.stream_info(p_stream);
    end if;
end $$;

create or replace function headrace_granted.view_consumers(p_stream text, p_name text)
returns table (id uuid, stream text, stream_id uuid, name text, created_at timestamptz, updated_at timestamptz, settings json, begins json, "position" bigint, last_seq bigint, lag bigint, num_pending bigint,
               num_pending_exact boolean, num_ack_pending bigint, owners bigint, parked bigint, blocked bigint, replaying bigint,
               dead_letters bigint, holes bigint, oldest_unacked_at timestamptz, paused_until timestamptz, missed bigint,
               gap_lower bigint, gap_upper bigint, gap_at timestamptz)
language plpgsql as $$
begin
    if has_schema_privilege('headrace_internal', 'usage') then
        return query select * from headrace_internal.consumer_info(p_stream, p_name);
    else
        return query select * from headrace_granted.consumer_info(p_stream, p_name);
    end if;
end $$;

create or replace function headrace_granted.view_capture(p_source int) returns json
language plpgsql as $$
begin
    if has_schema_privilege('headrace_internal', 'usage') then
        return headrace_internal.capture_info(p_source);
    end if;
    return headrace_granted.capture_info(p_source);
end $$;

create or replace function headrace_granted.view_workers() returns table (id uuid, seen_at timestamptz, gone boolean, facts json)
language plpgsql as $$
begin
    if has_schema_privilege('headrace_internal', 'usage') then
        return query select * from headrace_internal.worker_info();
    else
        return query select * from headrace_granted.worker_info();
    end if;
end $$;

-- Tables that the store reads, as far as a role may. A security barrier keeps a function in a role's own WHERE from
-- seeing the other rows.

create or replace view headrace_granted.migrations as
select version, name, serves_from, functions, applied_at from headrace_internal.migrations;

create or replace view headrace_granted.history as
select id, since, single, xmin from headrace_internal.history;

create or replace view headrace_granted.streams with (security_barrier) as
select id, uid, name from headrace_internal.streams where id = any ((select headrace_granted.streams_of('any'))::int[]);

create or replace view headrace_granted.consumers with (security_barrier) as
select id, uid, stream_id, name, filter_where, deliver_policy, start_seq, start_time, version,
       case when stream_id = any ((select headrace_granted.streams_of('admin'))::int[]) then push end as push
from headrace_internal.consumers where stream_id = any ((select headrace_granted.streams_of('observe'))::int[]);

create or replace view headrace_granted.sources with (security_barrier) as
select * from headrace_internal.sources where 0 = any ((select headrace_granted.streams_of('admin'))::int[]);

create or replace view headrace_granted.backfills with (security_barrier) as
select * from headrace_internal.backfills where 0 = any ((select headrace_granted.streams_of('admin'))::int[]);

create or replace view headrace_granted.secrets with (security_barrier) as
select * from headrace_internal.secrets where 0 = any ((select headrace_granted.streams_of('admin'))::int[]);

create or replace view headrace_granted.tokens with (security_barrier) as
select * from headrace_internal.tokens where 0 = any ((select headrace_granted.streams_of('admin'))::int[])
with check option;

create or replace view headrace_granted.sessions with (security_barrier) as
select * from headrace_internal.sessions where 0 = any ((select headrace_granted.streams_of('admin'))::int[])
with check option;

create or replace view headrace_granted.databases with (security_barrier) as
select * from headrace_internal.databases where 0 = any ((select headrace_granted.streams_of('admin'))::int[]);

create or replace view headrace_granted.places with (security_barrier) as
select * from headrace_internal.places where 0 = any ((select headrace_granted.streams_of('admin'))::int[]);
