-- verifications: compare a captured table with its stream in mode `rows`.
--
-- A verification is a row of headrace_internal.backfills of another kind. It reads the table first, chunk by chunk, and
-- compares each row with the message of its key (`compare_messages`). Then it reads the stream in the order of its keys
-- (`captured_page`), and looks up the rows of the messages. Those that have none are too many, unless they have changed
-- since (`live_messages`). The comparisons run inside the transaction that appends everything up to their place in the
-- WAL.

-- Whether a message is one that a source has made of a row of this table. A transform may have removed the name of the
-- table, so p_prefix recognises its keys, if they begin with that name.
create or replace function headrace_internal.is_row_of(p_key text, p_data json, p_schema text, p_relation text, p_prefix text) returns boolean
language sql immutable as $$
    select case when p_data #>> '{metadata,table_name}' is not null
                then p_data #>> '{metadata,table_schema}' = p_schema and p_data #>> '{metadata,table_name}' = p_relation
                     and (p_data #> '{metadata,key}' is null or json_typeof(p_data -> 'record') is distinct from 'null')
                else coalesce(starts_with(p_key, p_prefix), false) end
$$;

-- Compare the newest messages of these keys. p_digests: SHA-256 of the text of the record that each should have. Null
-- returns the message in any case. Returns the messages that differ, with the places of their keys in p_keys, and those
-- that are missing with null.
create or replace function headrace_internal.compare_messages(p_stream text, p_keys text[], p_digests bytea[])
returns table (place int, data json)
language plpgsql as $$
begin
    return query execute format($f$
        select g.place::int, m.data
        from unnest($1, $2) with ordinality as g(key, digest, place) left join %s as m on m.key = g.key
        where m.key is null or g.digest is null or sha256(convert_to((m.data -> 'record')::text, 'UTF8')) is distinct from g.digest
        $f$, (headrace_internal.require_stream(p_stream)).relation) using p_keys, p_digests;
end $$;

-- Return the keys among these that have a row of the table in the stream. p_seqs: only if the message still has this seq.
create or replace function headrace_internal.live_messages(
    p_stream text, p_keys text[], p_seqs bigint[], p_schema text, p_relation text, p_prefix text
) returns setof text
language plpgsql as $$
begin
    return query execute format($f$
        select m.key from unnest($1, $2) as g(key, seq) join %s as m on m.key = g.key
        where m.seq = coalesce(g.seq, m.seq) and headrace_internal.is_row_of(m.key, m.data, $3, $4, $5)
        $f$, (headrace_internal.require_stream(p_stream)).relation) using p_keys, p_seqs, p_schema, p_relation, p_prefix;
end $$;

-- Return the next p_limit messages above the key p_after. Of a message that is a row of this table it returns the values
-- of these columns, and null for others.
create or replace function headrace_internal.captured_page(
    p_stream text, p_after text, p_limit int, p_schema text, p_relation text, p_prefix text, p_columns text[]
)
returns table (key text, seq bigint, "values" json)
language plpgsql as $$
begin
    return query execute format($f$
        select m.key, m.seq, case when headrace_internal.is_row_of(m.key, m.data, $3, $4, $5) then
                   (select json_object_agg(c, case when json_typeof(m.data) = 'object' and json_typeof(m.data -> 'record') = 'object'
                                                   then m.data -> 'record' -> c end)
                    from unnest($6) as c) end
        from %s as m where m.key > $1 order by m.key limit $2
        $f$, (headrace_internal.require_stream(p_stream)).relation)
        using p_after, p_limit, p_schema, p_relation, p_prefix, p_columns;
end $$;

-- Add up the results of comparisons. Nulls count nothing. At most 20 examples are kept.
create or replace function headrace_internal.add_differences(p_differences json[]) returns json
language sql immutable as $$
    select json_build_object(
        'differs', sum((d ->> 'differs')::bigint), 'missing', sum((d ->> 'missing')::bigint), 'extra', sum((d ->> 'extra')::bigint),
        'kept', sum((d ->> 'kept')::bigint), 'unchecked', sum((d ->> 'unchecked')::bigint),
        'examples', (
            select coalesce(json_agg(value order by place, n), '[]') from (
                select e.value, g.place, e.ordinality as n
                from unnest(p_differences) with ordinality as g(d, place), json_array_elements(g.d -> 'examples') with ordinality as e
                order by g.place, e.ordinality limit 20) as e))
    from unnest(p_differences) as d where d is not null
$$;

-- Request a verification of each of these tables whose last one was requested longer ago than p_every, under a capture
-- lease. Of those that have ended, the last 50 of each table are kept.
create or replace function headrace_internal.request_due_verifications(
    p_source int, p_epoch bigint, p_relations text[], p_every interval, p_now timestamptz default clock_timestamp()
) returns void
language plpgsql as $$
begin
    perform headrace_internal.require_capture_lease(p_source, p_epoch);
    insert into headrace_internal.backfills (source_id, relation, kind, created_at)
        select p_source, r.relation, 'verification', p_now from unnest(p_relations) as r(relation)
        where not exists (select from headrace_internal.backfills as b
                          where b.source_id = p_source and b.relation = r.relation and b.kind <> 'backfill'
                          and (b.created_at > p_now - p_every or b.state in ('queued', 'running')))
        on conflict do nothing;
    if found then
        delete from headrace_internal.backfills as b using (
            select id, row_number() over (partition by relation order by id desc) as place from headrace_internal.backfills
            where source_id = p_source and kind = 'verification' and state not in ('queued', 'running')) as e
            where b.id = e.id and e.place > 50;
    end if;
end $$;

-- Return the largest key of a stream. Empty if it has no messages.
create or replace function headrace_internal.largest_key(p_stream text) returns text
language plpgsql as $$
declare
    v_key  text;
begin
    execute format('select max(key) from %s', (headrace_internal.require_stream(p_stream)).relation) into v_key;
    return coalesce(v_key, '');
end $$;
