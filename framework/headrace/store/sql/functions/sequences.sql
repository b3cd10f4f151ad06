-- sequences: whether what is drawn next is above all that was given out.
--
-- It is so by itself, also after a crash, since a sequence's record is written before whatever has a number of it. It is not so on a server
-- that logical replication filled, or where only the data was restored: rows are copied there, and sequences are not. Then a new message would
-- lie below the cursors, and a new lease below the floor, and nobody would ever see them. So a lease call compares, which costs it nothing, and
-- whoever meets a number that is there already is told the same (translate.py).

-- Raises that a sequence stands behind.
create function headrace.raise_behind(p_sequence text, p_stands_at bigint, p_needed bigint) returns void
language plpgsql as $$
begin
    raise exception using errcode = 'HR010', message = format(
        'The sequence %s stands at %s, and numbers up to %s were given out, so what is drawn from it would not be delivered. Logical replication '
        'and restores of the data alone leave sequences behind. Mend them all: select headrace.mend_sequences(). Or this one alone: '
        'select setval(%L, %s).', p_sequence, p_stands_at, p_needed, p_sequence, p_needed);
end $$;

-- The number before that which is drawn next. pg_sequence_last_value is null for a sequence that was begun anew at a number.
create function headrace.stands_at(p_sequence text) returns bigint
language plpgsql as $$
declare
    v_last  bigint;
begin
    execute format('select case when is_called then last_value else last_value - 1 end from %s', p_sequence) into v_last;
    return v_last;
end $$;

-- Raise if a consumer's cursor has come further than seqs were drawn. Called when it seems so, which it also does to whom the sequence may not be
-- read by.
create function headrace.require_drawn(p_stream headrace.streams, p_needed bigint) returns void
language plpgsql as $$
begin
    if has_sequence_privilege(p_stream.sequence, 'select') and headrace.stands_at(p_stream.sequence) < p_needed then
        perform headrace.raise_behind(p_stream.sequence, headrace.stands_at(p_stream.sequence), p_needed);
    end if;
end $$;

-- The largest seq of a stream that anything knows of. A cursor's position is none where a person has put it ahead of the stream.
create function headrace.largest_seq(p_stream headrace.streams) returns bigint
language plpgsql as $$
declare
    v_largest  bigint;
begin
    execute format('select max(seq) from %s', p_stream.relation) into v_largest;
    return greatest(
        v_largest, p_stream.trimmed, 0,
        (select min(lower) - 1 from headrace.segments where stream_id = p_stream.id),
        (select max(seq) from headrace.message_ids where stream_id = p_stream.id),
        (select max(greatest(u.settled, u.mark, case when u.position is distinct from u.sought then u.position end))
         from headrace.consumers as c
         cross join lateral (select * from headrace.cursors where consumer_id = c.id order by version desc limit 1) as u
         where c.stream_id = p_stream.id));
end $$;

-- The sequences of the schema that stand behind: where, and what they must have reached.
create function headrace.sequences_behind() returns table (sequence text, stands_at bigint, needed bigint)
language plpgsql as $$
declare
    v_stream  headrace.streams;
    v_column  record;
begin
    sequence := 'headrace.lease_ids';
    stands_at := headrace.stands_at(sequence);
    needed := greatest((select max(lease_id) from headrace.leases), (select max(lease_id) from headrace.acks),
                       (select max(lease_floor) from headrace.cursors), 0) >> 20;
    if stands_at < needed then
        return next;
    end if;
    for v_stream in select * from headrace.streams order by id loop
        sequence := v_stream.sequence;
        stands_at := headrace.stands_at(sequence);
        needed := headrace.largest_seq(v_stream);
        if stands_at < needed then
            return next;
        end if;
    end loop;
    for v_column in
        select a.attrelid::regclass::text as relation, a.attname
        from pg_attribute as a join pg_class as c on c.oid = a.attrelid
        where c.relnamespace = 'headrace'::regnamespace and a.attidentity <> '' order by 1
    loop
        sequence := pg_get_serial_sequence(v_column.relation, v_column.attname);
        stands_at := headrace.stands_at(sequence);
        execute format('select coalesce(max(%I), 0) from %s', v_column.attname, v_column.relation) into needed;
        if stands_at < needed then
            return next;
        end if;
    end loop;
end $$;

-- Let all of them go on above what was given out, and return those that did not. Nobody draws from them meanwhile: it waits for open transactions that
-- have drawn, for up to p_patience milliseconds, and then raises lock_not_available.
create function headrace.mend_sequences(p_patience int default 10000) returns table (sequence text, was_at bigint, stands_at bigint)
language plpgsql as $$
declare
    v_behind  record;
begin
    perform headrace.require_read_committed('headrace.mend_sequences');
    perform headrace.be_patient(p_patience);
    for v_behind in select b.sequence from headrace.sequences_behind() as b loop
        execute format('alter sequence %s no cycle', v_behind.sequence);     -- changes nothing, and locks it
    end loop;
    return query
        select b.sequence, b.stands_at, setval(b.sequence::regclass, b.needed) from headrace.sequences_behind() as b;
end $$;
