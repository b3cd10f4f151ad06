-- Streams: one table each, in the schema headrace_streams, under the stream's own name.

create function headrace.create_stream(p_name text) returns int
language plpgsql as $$
declare
    v_id        int;
    v_relation  text := format('headrace_streams.%I', p_name);
    v_sequence  text := format('headrace_streams.%I', p_name || '_seq');
begin
    if p_name !~ '^[a-z0-9][a-z0-9_-]{0,47}$' then
        raise exception using errcode = 'HR004', message = format(
            'The stream name %L can''t be used: take 1 to 48 lower-case letters, digits, "-" and "_", the first one a letter or digit.', p_name);
    end if;
    perform pg_advisory_xact_lock(1212498508, 0);   -- one at a time: a second creation finds the first one's work
    select id into v_id from headrace.streams where name = p_name;
    if found then
        return v_id;
    end if;

    insert into headrace.streams (name, relation) values (p_name, v_relation) returning id into v_id;
    execute format('create sequence %s', v_sequence);
    -- Defaults are evaluated in the order of the columns, and that order carries the gap-aware cursor: a transaction has
    -- its xid before it draws a seq. created_at comes after seq, so that whoever drew a later seq has a later time.
    -- The key's grammar, as in NATS: tokens parted by dots, none empty, none exactly "*" or ">".
    -- An escaped NUL is JSON, but Postgres could never again hand out the string that it stands in.
    execute format($ddl$
        create table %1$s (
            xid         xid8 not null default pg_current_xact_id(),
            seq         bigint not null default nextval(%2$L) primary key,
            created_at  timestamptz not null default clock_timestamp(),
            key         text collate "C" not null
                        constraint valid_key check (octet_length(key) <= 1024 and ('.' || key || '.') not like '%%..%%'
                                               and (key not like '%%*%%' and key not like '%%>%%'
                                                    or ('.' || key || '.') !~ '\.[*>]\.')),
            data        json not null
                        constraint no_nul check (position('\u0000' in data::text) = 0
                                                 or data::text !~ '(^|[^\\])(\\\\)*\\u0000'),
            headers     json
                        constraint headers_are_objects check (headers is null or json_typeof(headers) = 'object')
        ) with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
                autovacuum_analyze_scale_factor = 0.5)
        $ddl$, v_relation, v_sequence);
    execute format('alter sequence %s owned by %s.seq', v_sequence, v_relation);
    begin
        execute format('alter table %s alter column data set compression lz4', v_relation);
    exception when feature_not_supported then
        -- This server was built without lz4; pglz costs two thirds of the throughput of 10 kB payloads.
        execute format('alter table %s alter column data set storage external', v_relation);
    end;
    return v_id;
end $$;
