-- readers: the statement that reads fresh messages, and a function for each stream that keeps its plans.
--
-- A statement that names a segment is dynamic SQL elsewhere, and then it is parsed and planned at each call, which takes
-- longer than reading a hundred messages. So each stream has a function with such a statement for each of its
-- last segments. A session plans those that it uses. Calls that read an older segment, or find no such function, as after a
-- restore of the table alone, execute the statement as text.
--
-- The function only reads, and the caller says from which segment, so it is right whatever becomes of the segments, and may
-- be replaced at any time. Only one function is kept for each stream, since a session never frees the plans of one that
-- was dropped.

-- Messages as they are read for a lease call, in the order of seq.
create type headrace_internal.fresh_messages as (
    seqs bigint[], hashes bigint[],
    keys text[], data json[], headers json[], created_at timestamptz[],     -- null for those that the caller has cached
    found  int,         -- number of messages that were there, also of those that were not read
    whole  boolean,     -- whether no payload is large. Large ones are left out, so that none is read. True if bytes are counted
    full_up boolean     -- whether the limit of bytes ended the read
);

-- The largest size of a payload that is small: a message that fits a page as it is delivered is not moved to the TOAST table.
create or replace function headrace_internal.small_payload() returns bigint
language sql immutable as 'select 8192::bigint';

-- Return SQL for whether a payload is small. It is text, as headrace_internal.payload_bytes is.
create or replace function headrace_internal.has_small_payload() returns text
language sql immutable as $$
    select 'pg_column_size(data) + coalesce(pg_column_size(headers), 0) <= ' || headrace_internal.small_payload()::text
           || ' and pg_column_compression(data) is null and pg_column_compression(headers) is null'
$$;

-- Return the statement that reads messages. $1: this segment. $2: the seq above which to read. $3: the largest number of
-- messages. $4: the seqs that the caller has cached. $5: the largest number of bytes, as in headrace_internal.read_request. Its
-- result is one row of fresh_messages.
--
-- p_counts: count the bytes, and read up to the first seq that is missing. For small payloads that would cost half of the
-- time of a large batch.
create or replace function headrace_internal.fresh_query(p_relation text, p_counts boolean) returns text
language sql immutable as $f$
    select format(case when p_counts then $sql$
        select array_agg(seq) filter (where fits), array_agg(hash) filter (where fits), array_agg(case when not known then key end) filter (where fits),
               array_agg(case when not known then data end) filter (where fits), array_agg(case when not known then headers end) filter (where fits),
               array_agg(case when not known then created_at end) filter (where fits), count(*)::int, true, coalesce(bool_or(bytes_before >= $5), false)
        from (select *, seq = $2 + 1 + count(*) over earlier and coalesce(sum(bytes) over earlier, 0) < $5 as fits, sum(bytes) over earlier as bytes_before
              from (select seq, key, data, headers, created_at, hashtextextended(key, 0) as hash, coalesce(seq <@ $4, false) as known,
                           %2$s as bytes from %1$s where seq > $2 order by seq limit $3) as m
              window earlier as (order by seq rows between unbounded preceding and 1 preceding)) as m
        $sql$ else $sql$
        select array_agg(seq), array_agg(hash), array_agg(case when not known then key end), array_agg(case when small and not known then data end),
               array_agg(case when small and not known then headers end), array_agg(case when not known then created_at end),
               count(*)::int, coalesce(bool_and(small or known), true), false
        from (select seq, key, data, headers, created_at, hashtextextended(key, 0) as hash, coalesce(seq <@ $4, false) as known,
                     %2$s as small from %1$s where seq > $2 order by seq limit $3) as m
        $sql$ end, p_relation, case when p_counts then headrace_internal.payload_bytes() else headrace_internal.has_small_payload() end)
$f$;

-- The signature of the function that reads a stream.
create or replace function headrace_internal.reader_signature(p_stream int) returns text
language sql immutable as $$
    select 'headrace_streams."read.' || p_stream::text || '"(text, bigint, int, int8multirange, bigint)'
$$;

-- Create or replace the function that reads a stream's last segments, unless it is as it should be. It belongs to the owner
-- of the schema, like the table.
create or replace function headrace_internal.create_reader(p_stream int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    c_segments   constant int := 8;      -- mostly four are created ahead
    v_signature  constant text := headrace_internal.reader_signature(p_stream);
    v_body       text;
begin
    -- The rows are not made in an expression, since each message would be copied two more times.
    select format(E'declare\n    v_read  headrace_internal.fresh_messages;\nbegin\n%s    end if;\n    return v_read;\nend ', string_agg(
               format(E'    %s $1 = %L and $5 %s null then\n        select m.* into v_read from (%s) as m;\n',
                      case when place = 1 then 'if' else 'elsif' end, relation, case when counts then 'is not' else 'is' end, headrace_internal.fresh_query(relation, counts)),
               '' order by place))
        into v_body
        from (select relation, counts, row_number() over (order by lower desc, counts) as place
              from (select relation, lower from headrace_internal.segments where stream_id = p_stream order by lower desc limit c_segments) as l
              cross join (values (false), (true)) as c(counts)) as l having count(*) > 0;
    if (select prosrc from pg_proc where oid = to_regprocedure(v_signature)) is distinct from v_body then
        execute format('create or replace function %s returns headrace_internal.fresh_messages language plpgsql as %L', v_signature, v_body);
    end if;
end $$;

-- Drop the function that reads a stream.
create or replace function headrace_internal.drop_reader(p_stream int) returns void
language plpgsql as $$
begin
    execute format('drop function if exists %s', headrace_internal.reader_signature(p_stream));
end $$;

-- The streams that exist already.
do $$
begin
    perform headrace_internal.create_reader(id) from headrace_internal.streams where not one_message_per_key;
end $$;

-- Read fresh messages from a segment. The parameters: see headrace_internal.fresh_query. p_reader: the function of the
-- stream, null if there is none. p_bytes: null to read small payloads only, and to count no bytes.
create or replace function headrace_internal.read_fresh(
    p_reader regprocedure, p_relation text, p_position bigint, p_limit int, p_cached int8multirange, p_bytes bigint
) returns headrace_internal.fresh_messages
language plpgsql as $$
declare
    v_read  headrace_internal.fresh_messages;
begin
    if has_function_privilege(p_reader, 'execute') then
        -- A function in the FROM clause would have its result copied into a table.
        execute format('select (r).* from (select %s($1, $2, $3, $4, $5) as r) as called', p_reader::regproc)
            into v_read using p_relation, p_position, p_limit, p_cached, p_bytes;
    end if;
    if v_read.whole is null then
        execute headrace_internal.fresh_query(p_relation, p_bytes is not null)
            into v_read using p_relation, p_position, p_limit, p_cached, p_bytes;
    end if;
    return v_read;
end $$;
