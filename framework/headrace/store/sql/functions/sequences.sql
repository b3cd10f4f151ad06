-- sequences: check that the next number drawn is above all numbers in use.
--
-- That holds automatically, also after a crash, because a sequence's WAL record precedes everything that uses one of
-- its numbers. It does not hold on a server that logical replication filled, or where only the data was restored,
-- because these copy rows and not sequences. Then a new message would lie below the cursors, and a new lease below
-- the floor, and they would never be seen. So a lease call compares the two, at no cost, and a statement that draws a
-- number that exists already raises the same error (store/database/errors.py).

-- Raise the error that a sequence is behind.
create or replace function headrace_internal.raise_sequence_behind(p_sequence text, p_stands_at bigint, p_needed bigint) returns void
language plpgsql as $$
begin
    raise exception using errcode = 'HR010', message = format(
        'The sequence %s stands at %s, and numbers up to %s were given out, so what is drawn from it would not be delivered. Logical replication '
        'and restores of the data alone leave sequences behind. Mend them all: select headrace.mend_sequences(). Or this one alone: '
        'select setval(%L, %s).', p_sequence, p_stands_at, p_needed, p_sequence, p_needed);
end $$;

-- Return the number before the next one drawn. pg_sequence_last_value is null for a sequence that was restarted at a
-- number.
create or replace function headrace_internal.sequence_position(p_sequence text) returns bigint
language plpgsql as $$
declare
    v_last  bigint;
begin
    execute format('select case when is_called then last_value else last_value - 1 end from %s', p_sequence) into v_last;
    return v_last;
end $$;

-- Raise if a consumer's cursor is beyond the last seq drawn. Called when that seems so, which is also the case if the
-- caller may not read the sequence.
create or replace function headrace_internal.require_sequence_ahead(p_stream headrace_internal.streams, p_needed bigint) returns void
language plpgsql as $$
begin
    if has_sequence_privilege(p_stream.sequence, 'select') and headrace_internal.sequence_position(p_stream.sequence) < p_needed then
        perform headrace_internal.raise_sequence_behind(p_stream.sequence, headrace_internal.sequence_position(p_stream.sequence), p_needed);
    end if;
end $$;

-- Return the largest seq of a stream that any table contains. A cursor's position does not count where a user has
-- moved it ahead of the stream.
create or replace function headrace_internal.largest_seq(p_stream headrace_internal.streams) returns bigint
language plpgsql as $$
declare
    v_largest  bigint;
begin
    execute format('select max(seq) from %s', p_stream.relation) into v_largest;
    return greatest(
        v_largest, p_stream.trimmed, 0,
        (select min(lower) - 1 from headrace_internal.segments where stream_id = p_stream.id),
        (select max(seq) from headrace_internal.message_ids where stream_id = p_stream.id),
        (select max(greatest(u.settled, u.mark, case when u.position is distinct from u.sought then u.position end))
         from headrace_internal.consumers as c
         cross join lateral (select * from headrace_internal.cursors where consumer_id = c.id order by version desc limit 1) as u
         where c.stream_id = p_stream.id));
end $$;

-- Return the sequences of the schema that are behind: where they are, and where they must be.
create or replace function headrace.sequences_behind() returns table (sequence text, stands_at bigint, needed bigint)
language plpgsql as $$
declare
    v_stream  headrace_internal.streams;
    v_column  record;
begin
    sequence := 'headrace_internal.lease_ids';
    stands_at := headrace_internal.sequence_position(sequence);
    needed := greatest((select max(lease_id) from headrace_internal.leases), (select max(lease_id) from headrace_internal.acks),
                       (select max(lease_floor) from headrace_internal.cursors), 0) >> 20;
    if stands_at < needed then
        return next;
    end if;
    for v_stream in select * from headrace_internal.streams order by id loop
        sequence := v_stream.sequence;
        stands_at := headrace_internal.sequence_position(sequence);
        needed := headrace_internal.largest_seq(v_stream);
        if stands_at < needed then
            return next;
        end if;
    end loop;
    for v_column in
        select a.attrelid::regclass::text as relation, a.attname
        from pg_attribute as a join pg_class as c on c.oid = a.attrelid
        where c.relnamespace = 'headrace_internal'::regnamespace and a.attidentity <> '' order by 1
    loop
        sequence := pg_get_serial_sequence(v_column.relation, v_column.attname);
        stands_at := headrace_internal.sequence_position(sequence);
        execute format('select coalesce(max(%I), 0) from %s', v_column.attname, v_column.relation) into needed;
        if stands_at < needed then
            return next;
        end if;
    end loop;
end $$;

-- Move all sequences that are behind above the numbers in use, and return them. No number may be drawn meanwhile, so
-- this waits for open transactions that have drawn one, for up to p_lock_timeout milliseconds, and then raises
-- lock_not_available.
create or replace function headrace.mend_sequences(p_lock_timeout int default 10000) returns table (sequence text, was_at bigint, stands_at bigint)
language plpgsql as $$
declare
    v_behind  record;
begin
    perform headrace_internal.require_read_committed('headrace.mend_sequences');
    perform headrace_internal.set_lock_timeout(p_lock_timeout);
    for v_behind in select b.sequence from headrace.sequences_behind() as b loop
        execute format('alter sequence %s no cycle', v_behind.sequence);     -- changes nothing, and locks it
    end loop;
    return query
        select b.sequence, b.stands_at, setval(b.sequence::regclass, b.needed) from headrace.sequences_behind() as b;
end $$;
