-- sequences: check that the next number drawn is above all numbers in use.
--
-- That holds automatically, also after a crash, because a sequence's WAL record precedes everything that uses one of
-- its numbers. It does not hold on a server that logical replication filled, or where only the data was restored,
-- because these copy rows and not sequences. Then a new message would lie below the cursors, and a new lease below
-- the floor, and they would never be seen. So a lease call compares the two, at no cost, and a statement that draws a
-- number that exists already raises the same error (store/database/errors.py). That alone would not do: each failure
-- draws a number, until one lies in a gap, where the message is published and lost. So a stream's row has a seq that
-- was drawn, which is copied with it, and publishing is refused before a smaller one is drawn.

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

-- Return whether a sequence seems to stand below a seq that was drawn. For callers that may not read the sequence it
-- never does. Volatile, since otherwise it would not be inlined, which each publish pays for.
create or replace function headrace_internal.seems_behind(p_sequence text, p_drawn bigint) returns boolean
language sql volatile as $$
    select case when has_sequence_privilege(p_sequence, 'select') then coalesce(pg_sequence_last_value(p_sequence::regclass), 0) < p_drawn
                else false end
$$;

-- Note a seq that was drawn in the stream's row, if it is twice the last one. Returns it.
-- Granted: admin
create or replace function headrace_internal.note_drawn(p_stream int) returns bigint
language sql as $$
    update headrace_internal.streams as s set drawn = headrace_internal.last_drawn_seq(s)
        where s.id = p_stream and headrace_internal.last_drawn_seq(s) >= 2 * s.drawn and headrace_internal.last_drawn_seq(s) > s.drawn;
    select drawn from headrace_internal.streams where id = p_stream;
$$;

-- Return the largest seq of a stream that any table contains. A cursor's position does not count where a user has
-- moved it ahead of the stream.
create or replace function headrace_internal.largest_seq(p_stream headrace_internal.streams) returns bigint
language plpgsql as $$
declare
    v_largest  bigint;
begin
    execute format('select max(seq) from %s', p_stream.relation) into v_largest;
    return greatest(
        v_largest, p_stream.trimmed, p_stream.drawn, 0,
        (select min(lower) - 1 from headrace_internal.segments where stream_id = p_stream.id),
        (select max(seq) from headrace_internal.message_ids where stream_id = p_stream.id),
        (select max(seq) from headrace_internal.unique_keys where stream_id = p_stream.id),
        (select max(seq) from headrace_internal.erasures where stream_id = p_stream.id),
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

-- Return the segments of a stream as the catalog has them.
create or replace function headrace_internal.attached_segments(p_stream headrace_internal.streams) returns table (lower bigint, upper bigint, relation text)
language sql stable as $$
    select bounds[1]::bigint, bounds[2]::bigint, format('headrace_streams.%I', relname)
    from (select c.relname, regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM [(]''?([0-9]+)''?[)] TO [(](?:''?([0-9]+)''?|MAXVALUE)[)]') as bounds
          from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
          where i.inhparent = to_regclass(p_stream.relation)) as b
    where bounds is not null
$$;

-- Read the segments of a stream again from the catalog, if they are others. Logical replication copies the rows of
-- headrace_internal.segments and creates no tables. With publish_via_partition_root, messages go into the tables that
-- are there.
create or replace function headrace_internal.reread_segments(p_stream headrace_internal.streams) returns void
language plpgsql as $$
begin
    if array(select format('%s %s %s', a.lower, a.upper, a.relation) from headrace_internal.attached_segments(p_stream) as a order by a.lower)
       = array(select format('%s %s %s', s.lower, s.upper, s.relation) from headrace_internal.segments as s where s.stream_id = p_stream.id order by s.lower)
    then
        return;
    end if;
    perform pg_advisory_xact_lock(1212498510, p_stream.id);     -- see headrace_internal.lock_stream_for_maintenance
    delete from headrace_internal.segments as s where s.stream_id = p_stream.id;
    insert into headrace_internal.segments (stream_id, lower, upper, relation)
        select p_stream.id, a.lower, a.upper, a.relation from headrace_internal.attached_segments(p_stream) as a;
    perform headrace_internal.create_reader(p_stream.id);
end $$;

-- Move all sequences that are behind above the numbers in use, and return them. No number may be drawn meanwhile, so
-- this waits for open transactions that have drawn one, for up to p_lock_timeout milliseconds, and then raises
-- lock_not_available. Segments are read again, too, since what copies rows without sequences creates no tables.
create or replace function headrace.mend_sequences(p_lock_timeout int default 10000) returns table (sequence text, was_at bigint, stands_at bigint)
language plpgsql as $$
declare
    v_behind  record;
begin
    perform headrace_internal.require_read_committed('headrace.mend_sequences');
    perform headrace_internal.set_lock_timeout(p_lock_timeout);
    perform headrace_internal.reread_segments(s) from headrace_internal.streams as s where not s.one_message_per_key order by s.id;
    for v_behind in select b.sequence from headrace.sequences_behind() as b loop
        execute format('alter sequence %s no cycle', v_behind.sequence);     -- changes nothing, and locks it
    end loop;
    return query
        select b.sequence, b.stands_at, setval(b.sequence::regclass, b.needed) from headrace.sequences_behind() as b;
end $$;
