-- search: look through a stream for messages that match, in steps that end after a time and say where to continue.

create type headrace_internal.searched as (
    relation  text,         -- the table to read
    low       bigint,       -- the range of the whole search ...
    high      bigint,
    first     bigint,       -- ... and that of a step, so that few segments are planned for
    last      bigint,
    clause    text,         -- the condition over a message's columns
    upwards   boolean,      -- whether the first messages are examined first
    seqs      bigint[]      -- the messages of the step's range that may match, null if they are not known
);

-- Return the seqs of the messages between two seqs whose keys match, as an index of keys has them. Null if there is none for
-- these filters, or if it has more than p_most entries to look at.
create or replace function headrace_internal.seqs_by_key(
    p_stream headrace_internal.streams, p_filters text[], p_low bigint, p_high bigint, p_most int
) returns bigint[]
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_filter    text;
    v_start     text;       -- the filter up to its first wildcard
    v_some      bigint[];
    v_count     int;
    v_examined  int := 0;
    v_seqs      bigint[] := '{}';
begin
    if p_filters is null or not (p_stream.one_message_per_key or p_stream.index_keys and not exists (
        select from headrace_internal.segments as g where g.stream_id = p_stream.id and not headrace_internal.has_key_index(g.stream_id, g.lower))) then
        return null;
    end if;
    foreach v_filter in array p_filters loop
        v_start := regexp_replace(v_filter, '(^|\.)[*>](\.|$).*$', '\1');
        if v_start = '' then
            return null;
        end if;
        -- The expression with the seq keeps the planner from the index of seqs.
        execute format($sql$
            select array_agg(m.seq) filter (where %s), count(*) from (
                select seq, key from %s where %s and seq + 0 between $1 and $2 limit $3) as m
            $sql$, headrace_internal.key_condition(array[v_filter]), headrace_internal.table_of_range(p_stream, p_low, p_high),
            case when v_start = v_filter then format('key = %L', v_filter)
                 else format('key >= %L and key < %L', v_start, left(v_start, -1) || '/') end)     -- a slash follows the dot
            into v_some, v_count using p_low, p_high, p_most - v_examined + 1;
        v_examined := v_examined + v_count;
        if v_examined > p_most then
            return null;
        end if;
        v_seqs := v_seqs || v_some;
    end loop;
    return array(select distinct seq from unnest(v_seqs) as seq order by seq);
end $$;

-- Return what a step of a search reads: see headrace_internal.search_step.
create or replace function headrace_internal.range_of_search(
    p_stream headrace_internal.streams, p_search json, p_examine int
) returns headrace_internal.searched
language plpgsql as $$
declare
    c_most      constant int := 10000;      -- messages of a step that an index has found
    v_since     constant timestamptz := p_search ->> 'since';
    v_until     constant timestamptz := p_search ->> 'until';
    v_searched  headrace_internal.searched;
begin
    v_searched.upwards := coalesce((p_search ->> 'upwards')::boolean, p_search ->> 'after' is not null);
    v_searched.clause := headrace_internal.selection_condition(p_search);
    v_searched.low := coalesce((p_search ->> 'after')::bigint, 0) + 1;
    v_searched.high := least(coalesce((p_search ->> 'before')::bigint, 9223372036854775807) - 1, greatest(
        pg_sequence_last_value(p_stream.sequence::regclass), headrace_internal.last_message_seq(p_stream), 0));     -- a copy's sequence is behind
    if v_since is not null then
        v_searched.clause := format('(%s) and created_at >= %s', v_searched.clause, headrace_internal.quoted_time(v_since));
        v_searched.low := greatest(v_searched.low, headrace_internal.seq_near(p_stream, v_since - interval '1 minute'));
    end if;
    if v_until is not null then
        v_searched.clause := format('(%s) and created_at < %s', v_searched.clause, headrace_internal.quoted_time(v_until));
        v_searched.high := least(v_searched.high, headrace_internal.seq_near(p_stream, v_until + interval '1 minute'));
    end if;
    v_searched.first := v_searched.low;
    v_searched.last := v_searched.high;
    v_searched.seqs := headrace_internal.seqs_by_key(p_stream, headrace_internal.selection_filters(p_search), v_searched.low, v_searched.high, 5 * p_examine);
    if v_searched.seqs is not null then
        if cardinality(v_searched.seqs) > c_most and v_searched.upwards then
            v_searched.seqs := v_searched.seqs[:c_most];
            v_searched.last := v_searched.seqs[c_most];
        elsif cardinality(v_searched.seqs) > c_most then
            v_searched.seqs := v_searched.seqs[cardinality(v_searched.seqs) - c_most + 1:];
            v_searched.first := v_searched.seqs[1];
        end if;
        v_searched.relation := headrace_internal.table_of_range(
            p_stream, coalesce(v_searched.seqs[1], 1), coalesce(v_searched.seqs[cardinality(v_searched.seqs)], 1));
        return v_searched;
    end if;
    v_searched.first := case when v_searched.upwards then v_searched.low else greatest(v_searched.low, v_searched.high - 10 * p_examine::bigint) end;
    v_searched.last := case when v_searched.upwards then least(v_searched.high, v_searched.low + 10 * p_examine::bigint) else v_searched.high end;
    v_searched.relation := headrace_internal.table_of_range(p_stream, v_searched.first, v_searched.last);
    return v_searched;
end $$;

-- Examine messages downwards, or `upwards`, as by default if there is an `after`. It ends after p_examine messages or p_seconds,
-- after p_limit messages that match, or once these exceed p_bytes as text. A single message takes as long as its condition
-- does.
--
-- p_search: {"filter", "where", "after", "before", "since", "until", "upwards"}, each optional. filter and where: see
-- headrace_internal.selection_condition. Of the bounds, those of seqs and `until` are excluded.
--
-- Returns the messages that match, in the order in which they were found, and a last row without a seq: `examined`: the
-- number of messages examined. `reached`: all messages from here on (up to here, if upwards) were examined. `more`:
-- whether there may be others. `remaining`: about how many.
-- Granted: consume
create or replace function headrace_internal.search_step(
    p_stream text, p_search json, p_limit int, p_examine int, p_bytes bigint, p_seconds float8
)
returns table (seq bigint, key text, data json, headers json, created_at timestamptz, examined bigint, reached bigint, "more" boolean, remaining bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    v_stream    headrace_internal.streams := headrace_internal.require_stream(p_stream);
    v_deadline  timestamptz := clock_timestamp() + make_interval(secs => p_seconds);
    v_searched  headrace_internal.searched := headrace_internal.range_of_search(v_stream, p_search, p_examine);
    v_order     constant text := case when v_searched.upwards then 'asc' else 'desc' end;
    v_found     int := 0;
    v_bytes     bigint := 0;
    v_stopped   bigint;
    v_message   record;
    v_cursor    refcursor;
begin
    -- After the deadline every message is returned, so that the search ends at the next one, whether it matches or not.
    -- The inner limit keeps the condition from being evaluated twice. Rows are fetched one by one, since a loop would
    -- fetch fifty of them ahead.
    open v_cursor no scroll for execute format($sql$
        select m.seq, m.key, m.data, m.headers, m.created_at, m.wanted, clock_timestamp() > $4 as late
        from (select seq, key, data, headers, created_at, coalesce((%s), false) as wanted from %s
              where seq >= $1 and seq <= $2 %s order by seq %s limit $3) as m
        where m.wanted or clock_timestamp() > $4
        $sql$, v_searched.clause, v_searched.relation, case when v_searched.seqs is not null then 'and seq = any ($5)' end, v_order)
        using v_searched.first, v_searched.last, p_examine, v_deadline, v_searched.seqs;
    loop
        fetch v_cursor into v_message;
        exit when v_message.seq is null;
        if v_message.wanted then
            return query select v_message.seq, v_message.key, v_message.data, v_message.headers, v_message.created_at,
                                null::bigint, null::bigint, null::boolean, null::bigint;
            v_found := v_found + 1;
            v_bytes := v_bytes + octet_length(v_message.data::text) + coalesce(octet_length(v_message.headers::text), 0);
        end if;
        if v_found >= p_limit or v_bytes >= p_bytes or v_message.late then
            v_stopped := v_message.seq;
            exit;
        end if;
    end loop;
    close v_cursor;
    if v_searched.seqs is not null then
        examined := cardinality(v_searched.seqs);
        reached := coalesce(v_stopped, case when v_searched.upwards then v_searched.last else v_searched.first end);
        "more" := case when v_searched.upwards then reached < v_searched.high else reached > v_searched.low end;
        remaining := case when "more" then greatest((select count(*) from unnest(v_searched.seqs) as s where case when v_searched.upwards then s > reached else s < reached end), 1)
                          else 0 end;
        return next;
        return;
    end if;
    -- The index of seqs counts what was examined.
    execute format($sql$
        select count(*), coalesce(case when $4 then max(m.seq) else min(m.seq) end, $5)
        from (select seq from %s where seq >= $1 and seq <= $2 order by seq %s limit $3) as m
        $sql$, v_searched.relation, v_order)
        into examined, reached
        using case when v_searched.upwards then v_searched.first else coalesce(v_stopped, v_searched.first) end,
              case when v_searched.upwards then coalesce(v_stopped, v_searched.last) else v_searched.last end,
              p_examine, v_searched.upwards, case when v_searched.upwards then v_searched.first - 1 else v_searched.last + 1 end;
    remaining := examined::float8 * (case when v_searched.upwards then v_searched.high - reached else reached - v_searched.low end)
        / greatest(case when v_searched.upwards then reached - v_searched.first else v_searched.last - reached end + 1, 1);
    if v_stopped is null and examined < p_examine then
        -- The whole range of the step was examined. There may be none for millions of seqs, in a stream with one message
        -- per key.
        execute format('select seq from %s where seq >= $1 and seq <= $2 order by seq %s limit 1', v_stream.relation, v_order)
            into reached
            using case when v_searched.upwards then v_searched.last + 1 else v_searched.low end,
                  case when v_searched.upwards then v_searched.high else v_searched.first - 1 end;
        reached := reached + case when v_searched.upwards then -1 else 1 end;
    end if;
    reached := coalesce(reached, case when v_searched.upwards then greatest(v_searched.high, v_searched.low - 1) else least(v_searched.low, v_searched.high + 1) end);
    "more" := case when v_searched.upwards then reached < v_searched.high else reached > v_searched.low end;
    remaining := case when "more" then greatest(remaining, 1) else 0 end;
    return next;
end $$;
