-- Streams that keep what their policy says, and consumers that can start anywhere and go anywhere.

alter table headrace.streams
    add column retention            text not null default 'limits' check (retention in ('limits', 'interest')),
    add column retain_up_to         interval check (retain_up_to > '0'),        -- what is older is removed
    add column retain_at_least      interval check (retain_at_least > '0'),     -- what is younger is not, whatever the size
    add column max_storage          bigint check (max_storage > 0),             -- bytes; the oldest go first
    add column one_message_per_key  boolean not null default false,
    add column dedupe               boolean not null default false,     -- an unchanged payload of a key is not published again
    add column tombstones           boolean not null default false,     -- a null payload deletes its key
    add column dedupe_window        interval not null default '2 minutes',      -- for so long message ids are remembered
    add column full_until           timestamptz,        -- until then publishing is refused; renewed while it must be
    add column updated_at           timestamptz not null default clock_timestamp(),
    add column sequence             text;       -- that its seqs are drawn from, quoted
update headrace.streams set sequence = format('headrace_streams.%I', name || '.seq');
alter table headrace.streams alter column sequence set not null;

-- The range partitions of a stream's table, by seq. The last one has no upper bound, and stays empty while somebody makes
-- new ones ahead of it. See segments.sql.
create table headrace.segments (
    stream_id   int not null references headrace.streams (id) on delete cascade,
    lower       bigint not null,
    upper       bigint,             -- exclusive; null for the last one
    relation    text not null,
    created_at  timestamptz not null default clock_timestamp(),
    primary key (stream_id, lower)
);

alter table headrace.consumers
    add column filter_where    json,           -- the condition on the data, as a tree: headrace.where_condition
    add column deliver_policy  text not null default 'all'
                               check (deliver_policy in ('all', 'new', 'by_start_seq', 'by_start_time', 'last_per_key')),
    add column start_seq       bigint,
    add column start_time      timestamptz,
    add column max_waiting     int not null default 20 check (max_waiting > 0),
    add column paused_until    timestamptz,    -- 'infinity' until somebody resumes it
    add column version         int not null default 1;     -- of the settings: rises when they change


-- What retention has removed before a consumer got it.
create table headrace.gaps (
    consumer_id  int primary key references headrace.consumers (id) on delete cascade,
    messages     bigint not null,               -- in all
    lower        bigint not null,               -- the last time: from this seq ...
    upper        bigint not null,               -- ... to before this one
    happened_at  timestamptz not null
);

-- Messages to be delivered to a consumer apart from its cursor, before anything else: a replay, or the last of each key.
create table headrace.replays (
    consumer_id  int not null references headrace.consumers (id) on delete cascade,
    seq          bigint not null,
    key_hash     bigint not null,
    primary key (consumer_id, seq)
);

-- Messages that are to be published later. They have no seq before then.
create table headrace.scheduled (
    stream_id   int not null references headrace.streams (id) on delete cascade,
    deliver_at  timestamptz not null,
    id          bigint generated always as identity,
    -- As in the streams' own tables, so that what can't be published is refused at once.
    key         text collate "C" not null
                constraint valid_key check (octet_length(key) <= 1024 and ('.' || key || '.') not like '%..%'
                                       and (key not like '%*%' and key not like '%>%' or ('.' || key || '.') !~ '\.[*>]\.')),
    data        json not null
                constraint no_nul check (position('\u0000' in data::text) = 0 or data::text !~ '(^|[^\\])(\\\\)*\\u0000'),
    headers     json
                constraint headers_are_objects check (headers is null or json_typeof(headers) = 'object'),
    primary key (stream_id, deliver_at, id)
);

-- The ids that publishers gave their messages, so that a publish that is tried again changes nothing.
create table headrace.message_ids (
    stream_id     int not null references headrace.streams (id) on delete cascade,
    message_id    text collate "C" not null constraint valid_message_id check (octet_length(message_id) between 1 and 256),
    seq           bigint,           -- null for a message that is to be published later
    published_at  timestamptz not null default clock_timestamp(),
    primary key (stream_id, message_id)
);
create index message_ids_by_age on headrace.message_ids (stream_id, published_at);

-- A cursor's holes become one set, with a mark that says which of them may be forgotten when. See holes.sql.
alter table headrace.cursors
    add column holes       int8multirange not null default '{}',
    add column settled       bigint not null default 0,   -- nothing can come any more at or below this seq
    add column mark          bigint,    -- the next value of that, once ...
    add column mark_stamp    xid8,      -- ... every transaction with a smaller xid has ended; null when that is known
    add column replay_floor  bigint;    -- where what is left in headrace.replays begins, if anything is
update headrace.cursors set holes = young_holes + old_holes;
alter table headrace.cursors drop column young_holes, drop column old_holes, drop column old_stamp;

-- The tables of streams become range partitions: what there is, and one without an upper bound after it.
do $$
declare
    v_stream    headrace.streams;
    v_sequence  text;
    v_last      bigint;
    v_leaf      text;
    v_next      text;
begin
    for v_stream in select * from headrace.streams loop
        execute format('lock table %s', v_stream.relation);
        v_sequence := v_stream.sequence;
        execute format('alter sequence headrace_streams.%I rename to %I', v_stream.name || '_seq', v_stream.name || '.seq');
        execute format('select last_value from %s', v_sequence) into v_last;
        execute format('alter sequence %s owned by none', v_sequence);
        v_leaf := format('headrace_streams.%I', v_stream.name || '.1');
        v_next := format('headrace_streams.%I', v_stream.name || '.' || v_last + 1);
        execute format('alter table %s rename to %I', v_stream.relation, v_stream.name || '.1');
        execute format('alter index headrace_streams.%I rename to %I', v_stream.name || '_pkey', v_stream.name || '.1_pkey');
        execute format('create table %s (like %s including defaults including constraints including storage including compression)
                        partition by range (seq)', v_stream.relation, v_leaf);
        execute format('alter table %s add constraint %I primary key (seq)', v_stream.relation, v_stream.name || '.pkey');
        execute format('alter table %s attach partition %s for values from (1) to (%s)', v_stream.relation, v_leaf, v_last + 1);
        execute format('create table %s partition of %s for values from (%s) to (maxvalue)
                        with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
                              autovacuum_analyze_scale_factor = 0.5)', v_next, v_stream.relation, v_last + 1);
        execute format('alter sequence %s owned by %s.seq', v_sequence, v_stream.relation);
        insert into headrace.segments (stream_id, lower, upper, relation)
            values (v_stream.id, 1, v_last + 1, v_leaf), (v_stream.id, v_last + 1, null, v_next);
    end loop;
end $$;
