-- Generated: headrace_granted.<function> for each function of headrace_internal above whose definition follows a comment
-- `Granted: <privilege>`. What is checked follows from the names of its arguments: the privilege on the stream or on the
-- stream of the consumer, or else on all streams.
--
-- `all`: `admin` on all streams, whatever its arguments. `any`: any privilege on any stream.
-- `reads`: a function that returns rows of all streams, or of one. For a role it returns those of its streams.
do $$
declare
    v_function   record;
    v_position   int;
    v_check      text;
    v_call       text;
    v_outs       text[];
    v_columns    text;
    v_result     text;
begin
    for v_function in
        with given (privilege, name) as (values %(granted)s)
        select g.privilege, p.oid, p.proname, p.pronargs, p.proretset, p.proargnames, p.proargmodes, p.prorettype,
               string_to_array(pg_catalog.oidvectortypes(p.proargtypes), ', ') as types
        from given as g join pg_proc as p on p.proname = g.name and p.pronamespace = 'headrace_internal'::regnamespace
    loop
        -- Types are qualified in the text of the arguments.
        perform set_config('search_path', 'pg_catalog', true);
        v_position := coalesce(array_position(v_function.proargnames, 'p_consumer'), array_position(v_function.proargnames, 'p_consumers'),
                               array_position(v_function.proargnames, 'p_stream'));
        v_check := case
            when v_function.privilege = 'reads' then 'headrace_internal.require_any_grant()'
            when v_function.privilege = 'any' then 'headrace_internal.require_any_grant()'
            when v_function.privilege = 'all' then 'headrace_internal.require_grant(''admin'', 0)'
            when v_function.proargnames[v_position] = 'p_stream' and v_function.types[v_position] = 'text' then
                format('headrace_internal.require_grant_by_name(%L, $%s)', v_function.privilege, v_position)
            when v_function.proargnames[v_position] = 'p_stream' then
                format('headrace_internal.require_grant(%L, coalesce($%s, 0))', v_function.privilege, v_position)
            when v_position is not null then
                format('headrace_internal.require_grant_of_consumers(%L, array[]::int[] || $%s)', v_function.privilege, v_position)
            else format('headrace_internal.require_grant(%L, 0)', v_function.privilege) end;
        v_call := format('headrace_internal.%I(%s)', v_function.proname, (
            select string_agg('$' || n, ', ' order by n) from generate_series(1, v_function.pronargs) as n));
        v_outs := array(
            select quote_ident(name) from unnest(v_function.proargnames, v_function.proargmodes) as a(name, mode) where mode = 'o');
        v_columns := (
            select string_agg(case when name = 'settings' then 'headrace_internal.settings_for_readers(n.name, f.settings)' else 'f.' || quote_ident(name) end,
                              ', ' order by place)
            from unnest(v_function.proargnames, v_function.proargmodes) with ordinality as a(name, mode, place) where mode = 't');
        v_result := case
            when v_function.privilege = 'reads' then format(
                'return query select %s from (
                     select s.name from headrace_internal.streams as s
                     where s.id = any ((select headrace_granted.streams_of(''observe''))::int[]) and ($1 is null or s.name = $1)) as n
                 cross join lateral headrace_internal.%I(%s) as f order by n.name', v_columns, v_function.proname,
                (select string_agg(case n when 1 then 'n.name' else '$' || n end, ', ' order by n) from generate_series(1, v_function.pronargs) as n))
            when v_function.proretset then 'return query select * from ' || v_call
            when v_function.prorettype = 'void'::regtype then 'perform ' || v_call
            when v_outs <> '{}' then format('select * into %s from %s', array_to_string(v_outs, ', '), v_call)
            else 'return ' || v_call end;
        if v_function.proname in ('stream_names', 'consumer_names') then
            -- The pages are those of the streams that the role may observe. They end by number only.
            v_result := format(
                'return query select %s from %s with ordinality as f join headrace_internal.streams as s on s.name = %s
                 where s.id = any ((select headrace_granted.streams_of(''observe''))::int[]) order by f.ordinality limit p_limit',
                case v_function.proname when 'stream_names' then 'f.f' else 'f.stream, f.name' end,
                case v_function.proname when 'stream_names' then 'headrace_internal.stream_names($1, $2, null)'
                                        else 'headrace_internal.consumer_names($1, $2, $3, null, null)' end,
                case v_function.proname when 'stream_names' then 'f.f' else 'f.stream' end);
        elsif v_function.proname = 'capture_info' then
            v_check := 'headrace_internal.require_grant(''observe'', coalesce((select o.stream_id from headrace_internal.sources as o where o.id = $1), 0))';
        elsif v_function.proname = 'publish_with_options' then
            -- Ids of webhooks, see model/payloads: they are for the server that receives them.
            v_check := v_check || '; if exists (select from headrace_internal.publish_options($5, 1) as o where o.message_id like ''headrace:%'') then
                perform headrace_internal.require_grant_by_name(''admin'', $1); end if';
        elsif v_function.proname = 'republish' then
            v_check := v_check || '; perform headrace_internal.require_grant_by_name(''publish'', $2)';
        elsif v_function.proname = 'worker_info' then
            v_result := 'return query select w.id, w.seen_at, w.gone, headrace_internal.heartbeat_for_readers(w.facts)
                from headrace_internal.worker_info($1, $2) as w';
        elsif v_function.proname = 'poll_schedules' then
            v_result := 'return query select * from headrace_internal.poll_schedules($1, $2, least($3, clock_timestamp()), $4)';
        elsif v_function.proname = 'settings_of_consumer' then
            v_result := 'return (select headrace_internal.settings_for_readers(s.name, headrace_internal.settings_of_consumer($1))
                from headrace_internal.consumers as c join headrace_internal.streams as s on s.id = c.stream_id where c.id = $1)';
        elsif v_function.proname = 'declare_consumer' then
            v_check := 'headrace_internal.require_grant_by_name(''consume'', $1)';
            v_result := v_result || '; before := headrace_internal.settings_for_readers($1, before);
                if before is null or version_before is distinct from (select c.version from headrace_internal.consumers as c where c.id = consumer_id) then
                    perform headrace_internal.require_grant_by_name(''admin'', $1);       -- raises, which undoes the change
                end if';
        end if;
        execute format('create or replace function headrace_granted.%I(%s) returns %s language plpgsql security definer
                        set search_path = pg_catalog, pg_temp as %L',
            v_function.proname, pg_get_function_arguments(v_function.oid), pg_get_function_result(v_function.oid),
            case when v_function.proname = 'declare_consumer' then
                'declare version_before int := (
                     select c.version from headrace_internal.consumers as c join headrace_internal.streams as s on s.id = c.stream_id
                     where s.name = $1 and c.name = $2); ' else '' end
            || format('begin perform %s; %s; end', v_check, v_result));
    end loop;
end $$;

