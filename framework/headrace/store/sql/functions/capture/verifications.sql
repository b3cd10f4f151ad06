-- verifications: compare a captured table with its stream.
--
-- A verification is a row of headrace_internal.backfills of another kind. It reads the table first, chunk by chunk, and
-- compares each row with the message of its key (`compare_messages`). Then it reads the stream in the order of its keys
-- (`captured_page`), and looks up the rows of the messages. Those that have none are too many, unless they have changed
-- since (`live_messages`). The comparisons run inside the transaction that appends everything up to their place in the
-- WAL.
--
-- In mode `changes` the newest message of a row has no index. There a verification reads the stream first, in the order
-- of its seqs (`fold_messages`), and remembers the newest message of each row in headrace_internal.verified_rows. Each
-- comparison reads what was appended since. A source appends its messages one transaction after the other, and a
-- comparison is a part of one, so no message with a smaller seq follows.

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
-- Granted: all
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
-- Granted: all
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
-- Granted: all
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
-- Granted: all
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
-- Granted: all
create or replace function headrace_internal.largest_key(p_stream text) returns text
language plpgsql as $$
declare
    v_key  text;
begin
    execute format('select max(key) from %s', (headrace_internal.require_stream(p_stream)).relation) into v_key;
    return coalesce(v_key, '');
end $$;

-- Remember the newest message of each row among the next p_limit messages of a stream in mode `changes`. p_key: the
-- columns of the table's key. Returns whether there are no more messages.
-- Granted: all
create or replace function headrace_internal.fold_messages(
    p_backfill int, p_stream text, p_schema text, p_relation text, p_key text[], p_limit int
) returns boolean
language plpgsql as $$
declare
    v_relation   text := (headrace_internal.require_stream(p_stream)).relation;
    v_folded     bigint;
    v_last       bigint;
    v_count      int;
    v_truncated  bigint;
    v_partial    bigint;
begin
    select folded into v_folded from headrace_internal.backfills where id = p_backfill for update;
    execute format('select max(seq), count(*) from (select seq from %s where seq > $1 order by seq limit $2) as m', v_relation)
        into v_last, v_count using v_folded, p_limit;
    if v_count = 0 then
        return true;
    end if;
    execute format($f$
        with changes as materialized (
            select m.seq, m.data ->> 'action' as action, m.data -> 'record' as record, m.data -> 'changes' as changes,
                   m.data #> '{metadata,unchanged}' is not null as partial
            from %s as m where m.seq > $2 and m.seq <= $3
            and m.data #>> '{metadata,table_schema}' = $4 and m.data #>> '{metadata,table_name}' = $5
        ), rows as (
            select c.seq, k.key, case when not c.partial then sha256(convert_to(c.record::text, 'UTF8')) end as digest, c.action = 'delete' as gone
            from changes as c,
                 lateral (select json_agg(c.record -> name order by place)::text as key from unnest($6) with ordinality as n(name, place)) as k
            where c.action <> 'truncate' and json_typeof(c.record) = 'object'
            union all
            -- The key that a row had before.
            select c.seq, k.key, null, true
            from changes as c,
                 lateral (select json_agg(coalesce(c.changes -> name, c.record -> name) order by place)::text as key,
                                 bool_or(c.changes -> name is not null) as changed
                          from unnest($6) with ordinality as n(name, place)) as k
            where c.action = 'update' and json_typeof(c.changes) = 'object' and json_typeof(c.record) = 'object' and k.changed
        )
        insert into headrace_internal.verified_rows as v (backfill_id, hash, key, seq, digest, gone)
            select distinct on (hash) $1, sha256(convert_to(r.key, 'UTF8')) as hash, r.key, r.seq, r.digest,
                   r.gone or r.seq < coalesce((select max(seq) from changes where action = 'truncate'), 0)
            from rows as r order by hash, r.seq desc, r.gone
            on conflict (backfill_id, hash) do update set seq = excluded.seq, digest = excluded.digest, gone = excluded.gone
            where v.seq < excluded.seq
        $f$, v_relation) using p_backfill, v_folded, v_last, p_schema, p_relation, p_key;
    execute format($f$
        select max(m.seq) filter (where m.data ->> 'action' = 'truncate'),
               max(m.seq) filter (where m.data ->> 'action' = 'delete' and exists (select from unnest($5) as n(name) where m.data -> 'record' -> name is null))
        from %s as m where m.seq > $1 and m.seq <= $2
        and m.data #>> '{metadata,table_schema}' = $3 and m.data #>> '{metadata,table_name}' = $4
        $f$, v_relation) into v_truncated, v_partial using v_folded, v_last, p_schema, p_relation, p_key;
    if v_truncated is not null then
        update headrace_internal.verified_rows set gone = true where backfill_id = p_backfill and seq < v_truncated and not gone;
    end if;
    if v_partial is not null then
        -- A delete from before the table had this key lacks columns of it. The rows with its other values are gone.
        execute format($f$
            with deletes as (
                select k.known, k.key, max(m.seq) as seq
                from %s as m,
                     lateral (select array_agg(m.data -> 'record' -> name is not null order by place) as known,
                                     json_agg(m.data -> 'record' -> name order by place)::text as key
                              from unnest($6) with ordinality as n(name, place)) as k
                where m.seq > $2 and m.seq <= $3 and m.data ->> 'action' = 'delete'
                and m.data #>> '{metadata,table_schema}' = $4 and m.data #>> '{metadata,table_name}' = $5
                and true = any (k.known) and false = any (k.known)
                group by k.known, k.key
            )
            update headrace_internal.verified_rows as v set gone = true
            from (select distinct known from deletes) as s, deletes as d
            where v.backfill_id = $1 and not v.gone and v.seq < d.seq and d.known = s.known
            and d.key = (select json_agg(case when s.known[e.place] then e.value end order by e.place)::text
                         from json_array_elements(v.key::json) with ordinality as e(value, place))
            $f$, v_relation) using p_backfill, v_folded, v_last, p_schema, p_relation, p_key;
    end if;
    update headrace_internal.backfills set folded = v_last where id = p_backfill;
    return v_count < p_limit;
end $$;

-- Compare the newest messages of rows with these keys, see `compare_messages`. A row that is deleted according to the
-- stream has no record.
-- Granted: all
create or replace function headrace_internal.compare_folded(p_backfill int, p_stream text, p_keys text[], p_digests bytea[])
returns table (place int, data json)
language plpgsql as $$
begin
    return query execute format($f$
        select g.place::int, case when v.gone then '{"record": null}'::json else m.data end
        from unnest($2, $3) with ordinality as g(key, digest, place)
        left join headrace_internal.verified_rows as v on v.backfill_id = $1 and v.hash = sha256(convert_to(g.key, 'UTF8'))
        left join %s as m on m.seq = v.seq
        where v.hash is null or v.gone or v.digest is distinct from g.digest
        $f$, (headrace_internal.require_stream(p_stream)).relation) using p_backfill, p_keys, p_digests;
end $$;

-- Return the next p_limit rows above a hash that are not deleted according to the stream.
-- Granted: all
create or replace function headrace_internal.folded_page(p_backfill int, p_after bytea, p_limit int)
returns table (hash bytea, seq bigint, key text)
language sql as $$
    select v.hash, v.seq, v.key from headrace_internal.verified_rows as v
    where v.backfill_id = p_backfill and v.hash > p_after and not v.gone order by v.hash limit p_limit
$$;

-- Return those of these rows that still have the message with this seq as their newest one, and its key.
-- Granted: all
create or replace function headrace_internal.live_folded(p_backfill int, p_stream text, p_hashes bytea[], p_seqs bigint[])
returns table (hash bytea, key text)
language plpgsql as $$
begin
    return query execute format($f$
        select v.hash, m.key from unnest($2, $3) as g(hash, seq)
        join headrace_internal.verified_rows as v on v.backfill_id = $1 and v.hash = g.hash and v.seq = g.seq and not v.gone
        join %s as m on m.seq = v.seq
        $f$, (headrace_internal.require_stream(p_stream)).relation) using p_backfill, p_hashes, p_seqs;
end $$;

-- Delete at most p_limit of the rows that verifications of a source that have ended remember. Returns their number.
-- Granted: all
create or replace function headrace_internal.delete_verified_rows(p_source int, p_limit int) returns bigint
language plpgsql as $$
declare
    v_count  bigint;
begin
    delete from headrace_internal.verified_rows where ctid = any (array(
        select v.ctid from headrace_internal.backfills as b join headrace_internal.verified_rows as v on v.backfill_id = b.id
        where b.source_id = p_source and b.state not in ('queued', 'running') limit p_limit));
    get diagnostics v_count = row_count;
    return v_count;
end $$;
