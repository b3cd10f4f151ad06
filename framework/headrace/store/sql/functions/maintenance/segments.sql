-- Segments: the range partitions of an append stream, by seq. Publishers write through the parent, and Postgres finds
-- the segment. Retention drops whole segments. Segments are created ahead, each wider than the one before, and the
-- last has no upper bound, so that no publish ever fails for lack of one. The longer no new ones are created, the
-- coarser they get.

-- It belongs to the owner of the schema, as the stream's table does.
create or replace function headrace_internal.add_segment(p_stream int, p_lower bigint, p_upper bigint) returns text
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    v_stream  headrace_internal.streams;
    v_leaf    text;
begin
    select * into strict v_stream from headrace_internal.streams where id = p_stream;
    v_leaf := format('headrace_streams.%I', v_stream.name || '.' || p_lower);
    -- Created separately and attached, which takes a weaker lock on the parent than creating it as a partition.
    execute format('create table %s (like %s including constraints including storage including compression)
                    with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
                          autovacuum_analyze_scale_factor = 0.5)', v_leaf, v_stream.relation);
    execute format('alter table %s attach partition %s for values from (%s) to (%s)',
                   v_stream.relation, v_leaf, p_lower, coalesce(p_upper::text, 'maxvalue'));
    insert into headrace_internal.segments (stream_id, lower, upper, relation) values (p_stream, p_lower, p_upper, v_leaf);
    if v_stream.index_keys then
        execute format('create index %I on %s (key, seq)', headrace_internal.key_index_name(p_stream, p_lower), v_leaf);
    end if;
    return v_leaf;
end $$;

-- Create segments from p_lower on: one of the wanted width, two that are wider and wider, and the one without a
-- bound.
create or replace function headrace_internal.add_segments_ahead(p_stream int, p_lower bigint, p_width bigint) returns void
language plpgsql as $$
begin
    perform headrace_internal.add_segment(p_stream, p_lower, p_lower + p_width);
    perform headrace_internal.add_segment(p_stream, p_lower + p_width, p_lower + 17 * p_width);
    perform headrace_internal.add_segment(p_stream, p_lower + 17 * p_width, p_lower + 273 * p_width);
    perform headrace_internal.add_segment(p_stream, p_lower + 273 * p_width, null);
    perform headrace_internal.create_reader(p_stream);
end $$;

-- The name of a segment's index of keys, in the schema of the streams.
create or replace function headrace_internal.key_index_name(p_stream int, p_lower bigint) returns text
language sql immutable as $$
    select format('keys.%s.%s', p_stream, p_lower)
$$;

create or replace function headrace_internal.has_key_index(p_stream int, p_lower bigint) returns boolean
language sql as $$
    select to_regclass(format('headrace_streams.%I', headrace_internal.key_index_name(p_stream, p_lower))) is not null
$$;

-- Return the table from which to read the seqs from p_first to p_last. It is a single segment where that suffices,
-- since a query on the parent is planned for every segment that it may touch.
create or replace function headrace_internal.table_of_range(p_stream headrace_internal.streams, p_first bigint, p_last bigint) returns text
language plpgsql as $$
begin
    return coalesce(
        (select relation from (
            select relation, upper from headrace_internal.segments
            where stream_id = p_stream.id and lower <= p_first order by lower desc limit 1) as s
         where upper is null or upper > p_last),
        p_stream.relation);
end $$;

-- Return SQL for the size of data and headers as they are delivered. The stored ones may be compressed. It is text,
-- because a function would be parsed for inlining at each planning of a statement.
create or replace function headrace_internal.payload_bytes() returns text
language sql immutable as $f$
    select $$case when pg_column_compression(data) is null then pg_column_size(data) else octet_length(data::text) end
             + case when headers is null then 0
                    when pg_column_compression(headers) is null then pg_column_size(headers) else octet_length(headers::text) end$$
$f$;
