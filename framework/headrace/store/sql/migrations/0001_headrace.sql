-- The tables of Headrace. Messages are stored in one table per stream, in the schema headrace_streams, see
-- functions/catalog/streams.sql.
--
-- A message has no row per consumer. What a consumer has read is one cursor, and what is in flight is one lease row per
-- batch. Only messages that wait have rows: for a retry, for another message of their key, or for a user.
--
-- Every table can be part of a publication, so every table has a key or a replica identity.
--
-- Serves from: 1

-- Streams.

create table headrace_internal.streams (
    id                   int generated always as identity primary key,
    uid                  uuid not null default gen_random_uuid() unique,    -- the id in the API
    name                 text collate "C" not null unique,
    relation             text not null,     -- the table of its messages, quoted for format('%s')
    sequence             text not null,     -- the sequence of its seqs, quoted likewise
    retention            text not null default 'limits' check (retention in ('limits', 'interest')),
    retain_up_to         interval check (retain_up_to > '0'),       -- older messages are removed
    retain_at_least      interval check (retain_at_least > '0'),    -- younger messages are not removed, whatever the size
    max_storage          bigint check (max_storage > 0),            -- bytes. The oldest messages are removed first
    one_message_per_key  boolean not null default false,
    dedupe               boolean not null default false,    -- an unchanged payload of a key is not published again
    tombstones           boolean not null default false,    -- a null payload deletes its key
    dedupe_window        interval not null default '2 minutes',     -- how long message ids are remembered
    index_keys           boolean not null default false,    -- its segments have an index of keys, see functions/maintenance/key_indexes.sql
    has_key_indexes      boolean not null default false,    -- some of them have one, as after a change of index_keys
    full_until           timestamptz,       -- publishing is refused until then. It is renewed while the stream is full
    trimmed              bigint not null default 0,         -- the last seq that was removed row by row
    -- A seq that was drawn before. Logical replication copies it and not the sequence, so a publisher finds out that the
    -- sequence is behind, see sequences.sql. It rises by doubling, so that the row is seldom written.
    drawn                bigint not null default 0,
    created_at           timestamptz not null default clock_timestamp(),
    updated_at           timestamptz not null default clock_timestamp()
);

-- The range partitions of a stream's table, by seq. The last one has no upper bound. It stays empty while new ones are
-- created ahead of it. See segments.sql.
create table headrace_internal.segments (
    stream_id   int not null references headrace_internal.streams (id) on delete cascade,
    lower       bigint not null,
    upper       bigint,             -- exclusive, null for the last one
    relation    text not null,
    created_at  timestamptz not null default clock_timestamp(),
    primary key (stream_id, lower)
);

-- Messages to publish later. They have no seq before then. The constraints are those of the streams' own tables, so
-- that a message that can't be published is refused at once.
create table headrace_internal.scheduled (
    stream_id   int not null references headrace_internal.streams (id) on delete cascade,
    deliver_at  timestamptz not null,
    id          bigint generated always as identity,
    key         text collate "C" not null
                constraint valid_key check (octet_length(key) <= 1024 and key !~
                    '(^|\.)[*>]?(\.|$)|[\u0001-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]'),
    data        json not null
                constraint no_nul check (position('\u0000' in data::text) = 0 or data::text !~ '(^|[^\\])(\\\\)*\\u0000'),
    headers     json
                constraint headers_are_objects check (headers is null or json_typeof(headers) = 'object'),
    unique_key  text collate "C",
    constraint message_size check (
        pg_column_size(data) + coalesce(pg_column_size(headers), 0) <= 700000   -- however well it is compressed
        or octet_length(data::text) + coalesce(octet_length(headers::text), 0) <= 200000000),
    primary key (stream_id, deliver_at, id)
);

-- The ids that publishers gave their messages, so that a publish that is repeated has no effect.
create table headrace_internal.message_ids (
    stream_id     int not null references headrace_internal.streams (id) on delete cascade,
    message_id    text collate "C" not null constraint valid_message_id check (octet_length(message_id) between 1 and 256),
    seq           bigint,           -- null for a message that is scheduled
    published_at  timestamptz not null default clock_timestamp(),
    primary key (stream_id, message_id)
);
create index message_ids_by_age on headrace_internal.message_ids (stream_id, published_at);

-- The last message that was published with each unique key. Append-only like the cursors, since a key may be published
-- many times a second: each message inserts the next version and deletes the last. Only publishers write it, and
-- maintenance, which deletes the rows of messages that are no longer pending.
create table headrace_internal.unique_keys (
    stream_id     int not null references headrace_internal.streams (id) on delete cascade,
    unique_key    text collate "C" not null constraint valid_unique_key check (octet_length(unique_key) between 1 and 256),
    version       bigint not null,
    seq           bigint,           -- null while the message is scheduled ...
    deliver_at    timestamptz,      -- ... for this time ...
    scheduled_id  bigint,           -- ... under this id in headrace_internal.scheduled
    primary key (stream_id, unique_key, version)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- What is left of an erased message. It has nothing that the message contained.
create table headrace_internal.erasures (
    stream_id  int not null references headrace_internal.streams (id) on delete cascade,
    seq        bigint not null,
    erased_at  timestamptz not null,
    erased_by  text not null,       -- the name of the token, or else the role
    reason     text,
    primary key (stream_id, seq)
);

-- The value of the setting headrace.checked with which the functions that publish say that they have checked messages.
create table headrace_internal.check_secret (
    secret  text primary key
);
insert into headrace_internal.check_secret values (gen_random_uuid()::text);

-- Consumers.

create table headrace_internal.consumers (
    id               int generated always as identity primary key,
    uid              uuid not null default gen_random_uuid() unique,    -- the id in the API
    stream_id        int not null references headrace_internal.streams (id) on delete cascade,
    name             text collate "C" not null,
    filters          text[] not null,
    filter_where     json,              -- the condition as a tree: headrace_internal.where_condition
    condition        text not null,     -- filters and condition as SQL, quoted by Postgres: headrace_internal.condition
    ordered          boolean not null,
    ack_wait         interval not null,
    longest_wait     interval not null, -- the longest ack_wait that it has had: headrace_internal.bound_leases
    max_ack_pending  int not null check (max_ack_pending > 0),
    max_deliver      int not null check (max_deliver = -1 or max_deliver > 0),
    backoff          json not null,
    on_exhausted     text not null check (on_exhausted in ('dead_letter', 'block', 'drop')),
    max_waiting      int not null default 20 check (max_waiting > 0),
    rate_limit       float8 check (rate_limit > 0),     -- messages a second, null for no limit
    rate_burst       int check (rate_burst > 0),        -- null for as many as are delivered in one second
    push             json,              -- where and how to push messages, null for a consumer that pulls
    history          float8 check (history > 0),        -- seconds for which completions are kept, null for none
    deliver_policy   text not null default 'all'
                     check (deliver_policy in ('all', 'new', 'by_start_seq', 'by_start_time', 'last_per_key')),
    start_seq        bigint,
    start_time       timestamptz,
    paused_until     timestamptz,       -- infinity until a user resumes it
    version          int not null default 1,    -- of the settings, rises with each change
    created_at       timestamptz not null default clock_timestamp(),
    updated_at       timestamptz not null default clock_timestamp(),
    unique (stream_id, name)
);

-- The positions of consumers. Append-only: headrace_internal.write_cursor inserts the next version and deletes the last, and
-- readers ask for the newest. A row that is updated in place would grow a chain of dead versions under an old snapshot,
-- and every lookup would walk it.
--
-- Cursors and leases have no foreign key. Each lease call inserts one of both, and would lock and mark the consumer's row.
-- All that writes them holds the consumer's lock, and so does a deletion, which deletes their rows itself.
--
-- A floor is a lower bound from which an index is read, because below it there may be very many dead rows.
create table headrace_internal.cursors (
    consumer_id    int not null,
    version        bigint not null,
    position       bigint not null,     -- all messages up to here were examined, except those in the holes
    sought         bigint,              -- a position ahead of the stream to which a user moved it: headrace_internal.require_sequence_ahead
    -- The holes, see holes.sql.
    holes          int8multirange not null default '{}',
    holders        xid8[],              -- the transactions that can fill them, null if unknown
    frozen         xid8[] not null default '{}',    -- the holders of its frozen holes
    settled        bigint not null default 0,       -- no hole at or below this seq can be filled
    mark           bigint,              -- the next value of settled ...
    mark_stamp     xid8,                -- ... once all transactions with a smaller xid have ended. Null when they have
    suspects       text[],              -- virtual ids of the transactions that can draw seqs up to the mark
    suspects_at    timestamptz,         -- when these were read
    -- The floors.
    lease_floor    bigint not null default 0,       -- no lease has a smaller id
    parked_floor   bigint not null default 0,       -- no parked message has a smaller seq
    ready_floor    bigint not null default 0,       -- no parked message with a smaller seq is due at once
    due_floor      timestamptz not null default '-infinity',    -- no other parked message is due earlier
    blocked_floor  bigint not null default 0,       -- no dead letter with a smaller seq blocks a key
    replay_floor   bigint,              -- the first seq in headrace_internal.replays, null if there is none
    parked_room    int not null default 0,          -- messages to examine before the parked ones are counted again
    -- The token bucket, see rate.sql.
    tokens         float8,              -- the tokens left, null for a full bucket ...
    tokens_at      timestamptz,         -- ... at this time
    cancelling     boolean not null default false,  -- whether a cancellation may not have ended, see cancellations.sql
    primary key (consumer_id, version)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, toast_tuple_target = 8160);
-- Some hundred holes fit into the row, so that no lease call compresses them or stores them out of line.
alter table headrace_internal.cursors alter column holes set storage external;

-- Holes that only long transactions can fill, apart from the cursor, which every lease call writes. See holes.sql.
create table headrace_internal.frozen_holes (
    consumer_id  int not null references headrace_internal.consumers (id) on delete cascade,
    holder       xid8 not null,             -- a transaction that can fill them, one row for each
    lowest       bigint not null,           -- the first seq of these holes ...
    highest      bigint not null,           -- ... and the last one
    count        int not null,              -- the number of holes
    holders      xid8[] not null,           -- all transactions that can fill them
    holes        int8multirange,            -- in the row of the first holder, null in the others
    primary key (consumer_id, holder, lowest)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, toast_tuple_target = 8160);
alter table headrace_internal.frozen_holes alter column holes set storage external;

create sequence headrace_internal.lease_ids;

create table headrace_internal.leases (
    consumer_id  int not null,
    lease_id     bigint not null,
    owner        uuid not null,
    since        timestamptz not null default '-infinity',  -- messages that are put back are not due before
    expires_at   timestamptz not null,
    held         int not null,          -- the number of messages, so that counting needs no array
    lowest       bigint not null,       -- no message has a smaller seq
    seqs         bigint[],              -- null when they follow one another from the lowest on: headrace_internal.messages_of_lease
    hashes       bigint[] not null,     -- of the messages' keys, in the order of seqs
    attempts     int[],                 -- in that order. Null when each message is at its first attempt
    crashes      int[],                 -- in that order, how often in a row the worker died. Null when none did
    started      bigint[],              -- of the messages that crashed before, those that were started
    primary key (consumer_id, lease_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, fillfactor = 70, toast_tuple_target = 8160);
-- Large batches would be compressed and moved out of line, and be deleted milliseconds later. Each ack reads the messages of
-- a lease, so a lease of up to 500 messages is kept in one piece.
alter table headrace_internal.leases
    alter column seqs set storage external, alter column hashes set storage external, alter column attempts set storage external,
    alter column crashes set storage external, alter column started set storage external;

-- Acks that were committed together with the effects of a handler. The lease holds these messages until it is settled or
-- expires, see transactions.sql. A message has a row of its own, so that of two transactions which ack it at the same time
-- only one commits. There is no foreign key, because it would lock the consumer's row at each ack.
create table headrace_internal.acks (
    consumer_id  int not null,
    lease_id     bigint not null,
    seq          bigint not null,
    primary key (consumer_id, lease_id, seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- The owners that may be at work, see check_in.sql. Logged, since it is needed after a crash. There is no foreign key,
-- because a check-in would lock the consumer's row.
create table headrace_internal.owners (
    consumer_id int not null,
    owner       uuid not null,
    history     uuid not null,      -- in which it has checked in
    unknown     boolean not null default false,     -- it stands for those that a rewind has removed. `owner` is the history
                                                    -- that began then
    since       timestamptz not null default clock_timestamp(),
    primary key (consumer_id, owner)
);

-- An attempt that failed. error and error_type have the bounds of dead letters.
create type headrace_internal.failed_attempt as (
    at          timestamptz,
    error       text,
    error_type  text,       -- null if there was no exception
    process     text        -- host:pid of the worker process, null if a client has nacked it, or if it is not known
);

-- Messages that were read and can't be delivered yet: retries that are not due, messages of keys that another owner
-- holds, and messages that were put back. See parking.sql.
create table headrace_internal.parked (
    consumer_id  int not null references headrace_internal.consumers (id) on delete cascade,
    seq          bigint not null,
    key_hash     bigint not null,
    attempts     int not null,              -- the deliveries that counted
    crashes      int not null default 0,    -- how often in a row its worker died
    due_at       timestamptz not null,
    delay        float8,                    -- seconds, by which a retry waits no longer if the server's clock is set
                                            -- back. Null for a message that is due at once
    failure      headrace_internal.failed_attempt,  -- its last attempt, null if it was not started since it was leased.
                                            -- One column, since the ninth would add 8 bytes to each row
    primary key (consumer_id, seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create index parked_by_key on headrace_internal.parked (consumer_id, key_hash, seq);
create index parked_due on headrace_internal.parked (consumer_id, due_at, seq);

-- The messages behind the first one of a waiting key, which is parked, in flight or blocks the key. A waiting key has
-- one row in the tables that every lease call reads, however many messages it has.
create table headrace_internal.tails (
    consumer_id  int not null references headrace_internal.consumers (id) on delete cascade,
    key_hash     bigint not null,
    seq          bigint not null,
    primary key (consumer_id, seq)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create unique index tails_by_key on headrace_internal.tails (consumer_id, key_hash, seq);

create table headrace_internal.dead_letters (
    consumer_id  int not null references headrace_internal.consumers (id) on delete cascade,
    seq          bigint not null,
    key_hash     bigint not null,
    key          text collate "C" not null,
    data         json not null,
    headers      json,
    created_at   timestamptz not null,
    attempts     int not null,
    reason       text not null check (reason in ('exhausted', 'rejected', 'invalid')),
    error        text,
    traceback    text,
    blocks       boolean not null,      -- its key waits until it is redriven or discarded
    died_at      timestamptz not null,
    error_type   text collate "C",      -- by which dead letters are counted, listed, redriven and purged
    primary key (consumer_id, seq)
);
create index dead_letters_by_type on headrace_internal.dead_letters (consumer_id, error_type, died_at, seq);
create index dead_letters_blocking on headrace_internal.dead_letters (consumer_id, key_hash, seq) where blocks;
-- For the lowest one that blocks a key. Below it there may be very many dead rows.
create index dead_letters_that_block on headrace_internal.dead_letters (consumer_id, blocks, seq);

-- Messages to deliver to a consumer apart from its cursor, before all others: a replay, or the last of each key. There is
-- no foreign key, because a replay writes them before it has the consumer's lock, and would lock the consumer's row.
create table headrace_internal.replays (
    consumer_id  int not null,
    seq          bigint not null,
    key_hash     bigint not null,
    primary key (consumer_id, seq)
);

-- What consumers have done with their messages, see completions.sql. A row has the messages of one settle call with the
-- same outcome and the same upper bits of their seqs.
create table headrace_internal.completions (
    consumer_id  int not null,
    at           timestamptz not null,
    id           bigint generated always as identity,
    lower        bigint not null,       -- the smallest seq ...
    upper        bigint not null,       -- ... and the greatest. Both have the same bits above the lowest 10, their bucket
    outcome      text not null check (outcome in ('acked', 'expired', 'dropped', 'dead_letter', 'cancelled')),
    process      text,                  -- host:pid of the worker process, null for a client
    places       smallint[],            -- the lowest 10 bits of the seqs. Null when these are all from lower to upper
    attempts     int[],                 -- in the order of places. Null when each is the first attempt
    seconds      bytea,                 -- in that order, how long each took, see seconds_at. Null when that is known of none
    primary key (consumer_id, at, id)   -- with the time first, so that a sequence that is set back does no harm
) with (autovacuum_vacuum_scale_factor = 0.05, toast_tuple_target = 8160);
-- As leases: compressing durations takes longer than writing them.
alter table headrace_internal.completions
    alter column places set storage external, alter column attempts set storage external, alter column seconds set storage external;
create index completions_by_bucket on headrace_internal.completions (consumer_id, (lower >> 10), at);

-- The messages that operators have cancelled for a consumer, see cancellations.sql: those that may still be delivered or
-- are at work, and the latest of those that have ended.
create table headrace_internal.cancellations (
    consumer_id   int not null references headrace_internal.consumers (id) on delete cascade,
    seq           bigint not null,
    requested_at  timestamptz not null,
    requested_by  text not null,    -- the name of the token, or else the role
    lease_id      bigint,           -- the lease that has the message, null if it was waiting
    ended_at      timestamptz,      -- null while the request is pending
    outcome       text check (outcome in ('cancelled', 'finished')),    -- finished: the handler was done before
    primary key (consumer_id, seq)
);
create index cancellations_pending on headrace_internal.cancellations (consumer_id, seq) where ended_at is null;

-- The messages that retention removed before they were delivered to a consumer.
create table headrace_internal.gaps (
    consumer_id  int primary key references headrace_internal.consumers (id) on delete cascade,
    messages     bigint not null,           -- the number, in all
    lower        bigint not null,           -- the latest gap: from this seq ...
    upper        bigint not null,           -- ... to before this one
    happened_at  timestamptz not null
);

-- Subscriptions of consumers to notifications, see notifications.sql.
create table headrace_internal.waiting (
    consumer_id  int primary key references headrace_internal.consumers (id) on delete cascade,
    stream_id    int not null references headrace_internal.streams (id) on delete cascade,
    until        timestamptz not null
);
create index waiting_by_stream on headrace_internal.waiting (stream_id);

-- Until when any consumer of a stream is subscribed. Publishers read only this. Append-only like the cursors. Unlogged,
-- because it is of no use after a crash.
create unlogged table headrace_internal.waits (
    stream_id  int not null,
    until      timestamptz not null,
    primary key (stream_id, until)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Notifications of transactions that have not ended, where these can be prepared, see notifications.sql.
create unlogged table headrace_internal.notifications (
    xid        xid8 not null default pg_current_xact_id(),
    stream_id  int not null,
    primary key (xid, stream_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_threshold = 2147483647);

-- The function follows with the others.
create function headrace_internal.notify_unless_prepared() returns trigger language plpgsql as 'begin return null; end';
create constraint trigger notify_unless_prepared after insert on headrace_internal.notifications
    deferrable initially deferred for each row execute function headrace_internal.notify_unless_prepared();

-- Sources and captures.

-- Feeds of streams other than publishers: webhooks and captured tables.
create table headrace_internal.sources (
    id          int generated always as identity primary key,
    uid         uuid not null default gen_random_uuid() unique,     -- the id in the API
    name        text collate "C" not null unique,
    kind        text not null check (kind in ('webhook', 'postgres')),
    stream_id   int not null references headrace_internal.streams (id) on delete cascade,
    settings    json not null,
    created_at  timestamptz not null default clock_timestamp(),
    updated_at  timestamptz not null default clock_timestamp()
);

-- The capture lease of each source of kind `postgres`, and the state of its capture. It has a table of its own beside
-- headrace_internal.sources, because it changes all the time. `epoch` counts the capture leases, and an append under an older
-- one is refused.
create table headrace_internal.captures (
    source_id   int primary key references headrace_internal.sources (id) on delete cascade,
    paused_at   timestamptz,
    holder      uuid,               -- the process that captures the source ...
    held_until  timestamptz,        -- ... unless it does not renew its lease by then
    epoch       bigint not null default 0,
    system_id   text,               -- the server to which the positions belong ...
    timeline    int,                -- ... and its timeline, which changes at a failover
    state       text not null default 'new',
    reason      text,               -- why it can't continue, or what it waits for
    mend        text,               -- the statement or command that repairs it
    since       timestamptz not null default clock_timestamp(),
    facts       json,               -- the report of the process that captures it, every few seconds
    told_at     timestamptz         -- the time of that report
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The positions of captures: all changes committed up to `position` are in the stream. One row for each append, in the
-- transaction of the append, and older rows are deleted. A row that is updated hundreds of times a second would grow a
-- chain of dead versions under an old snapshot.
create table headrace_internal.capture_positions (
    source_id  int not null references headrace_internal.captures (source_id) on delete cascade,
    id         bigint generated always as identity,
    epoch      bigint not null,
    position   pg_lsn not null,
    captured   bigint not null,     -- the number of changes since the capture began
    primary key (source_id, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Captured tables whose existing rows are published while their changes are captured. Verifications compare tables with
-- their streams, and repair them. They are backfills of another kind, see functions/capture/verifications.sql.
create table headrace_internal.backfills (
    id           int generated always as identity primary key,
    uid          uuid not null default gen_random_uuid() unique,
    source_id    int not null references headrace_internal.captures (source_id) on delete cascade,
    relation     text not null,             -- as the source's settings name it
    kind         text not null default 'backfill' check (kind in ('backfill', 'verification', 'repair')),
    condition    json,                      -- which rows, null for all
    rate         int check (rate > 0),      -- the maximal number of rows a second
    state        text not null default 'queued' check (state in ('queued', 'running', 'done', 'cancelled', 'failed')),
    reason       text,
    total        bigint,                    -- the number of rows, as estimated at the start
    read         bigint not null default 0,
    published    bigint not null default 0, -- without the rows for which a newer change was captured meanwhile
    place        json,                      -- the key of the last row that was read
    folded       bigint not null default 0, -- in mode `changes` a verification first reads the stream up to here, and
                                            -- remembers the newest message of each row
    differences  json,                      -- the result of a comparison: counts and examples
    created_at   timestamptz not null default clock_timestamp(),
    started_at   timestamptz,
    updated_at   timestamptz,
    finished_at  timestamptz
) with (fillfactor = 50);
create unique index backfills_under_way on headrace_internal.backfills (source_id, relation)
    where state in ('queued', 'running') and kind = 'backfill';
-- A comparison that is running has passed rows that may differ now. So another one may be queued behind it.
create unique index verifications_queued on headrace_internal.backfills (source_id, relation, kind) where state = 'queued' and kind <> 'backfill';

create table headrace_internal.verified_rows (
    backfill_id  int not null references headrace_internal.backfills (id) on delete cascade,
    hash         bytea not null,            -- SHA-256 of the values of the row's key
    key          text collate "C" not null, -- these values, as a JSON array
    seq          bigint not null,           -- of the newest message
    digest       bytea,                     -- SHA-256 of its record. Null if it lacks values that did not change
    gone         boolean not null,          -- whether the row is deleted, according to the message
    primary key (backfill_id, hash)
);

-- A difference that changes rows without a message in the WAL, such as an attached partition, is found by a comparison
-- with this, also after a restart. `fingerprint` is null until it is known.
create table headrace_internal.captured_tables (
    source_id    int not null references headrace_internal.captures (source_id) on delete cascade,
    relation     text not null,     -- as the source's settings name it
    fingerprint  json,
    resync       uuid,              -- the backfill that was requested for the last such difference
    primary key (source_id, relation)
);

-- Slots that sources share. The slot on the server has a part of the id in its name, since another Headrace database may
-- capture from the same server, and name a slot alike.
create table headrace_internal.shared_slots (
    name  text primary key,     -- as the sources' settings name it
    uid   uuid not null default gen_random_uuid()
);

-- Changes that could not be made into messages, mostly because a transform failed.
create table headrace_internal.capture_failures (
    id         bigint generated always as identity primary key,
    source_id  int not null references headrace_internal.captures (source_id) on delete cascade,
    key        text,                        -- null if the key could not be made either
    data       json not null,               -- the change before it was transformed
    error      text not null,
    failed_at  timestamptz not null default clock_timestamp(),
    attempts   int not null default 1,
    retry      boolean not null default false
);
create index capture_failures_of_source on headrace_internal.capture_failures (source_id, id);
create index capture_failures_to_retry on headrace_internal.capture_failures (source_id, id) where retry;

-- The last deliveries to each webhook, accepted and refused. Without what they contained. Unlogged, because they are of
-- no use after a crash.
create table headrace_internal.deliveries (
    source_id  int not null references headrace_internal.sources (id) on delete cascade,
    id         bigint generated always as identity,
    at         timestamptz not null,
    accepted   boolean not null,
    status     int not null,            -- of the HTTP response
    reason     text,                    -- why it was refused, or why it was not published again
    bytes      bigint not null,         -- the size of the body
    key        text collate "C",        -- of the message, null if it was refused
    seq        bigint,                  -- of the message, if it has an id by which it is known
    remote     text,                    -- the address of the client
    primary key (source_id, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The last answers of the endpoint of each push consumer. Unlogged likewise.
create table headrace_internal.push_answers (
    consumer_id  int not null references headrace_internal.consumers (id) on delete cascade,
    id           bigint generated always as identity,
    at           timestamptz not null,
    status       int,                   -- null without a response
    ms           float8 not null,       -- how long it took
    error        text,
    messages     int not null,
    primary key (consumer_id, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Schedules of periodic messages, see functions/catalog/periodic.sql.

-- A process that declares a schedule computes its due times. This row is what all processes agree on: the next due
-- time, which moves on in the transaction that publishes the message.
create table headrace_internal.schedules (
    id            int generated always as identity primary key,
    name          text collate "C" not null unique,
    stream_id     int not null references headrace_internal.streams (id) on delete cascade,
    settings      json not null,
    digest        text not null,        -- of the settings, by which a process knows whether they are its own
    next_at       timestamptz,          -- the next due time. Null until a process has computed it
    requested_at  timestamptz,          -- a user wants a message now
    last_due_at   timestamptz,          -- the due time of the last message ...
    last_run_at   timestamptz,          -- ... and when it was published
    messages      bigint not null default 0,        -- how many were published
    paused_at     timestamptz,
    seen_at       timestamptz not null default clock_timestamp(),   -- when a process with these settings last asked
    created_at    timestamptz not null default clock_timestamp(),
    updated_at    timestamptz not null default clock_timestamp()
) with (fillfactor = 50);
create index schedules_by_stream on headrace_internal.schedules (stream_id);

-- Writes of several tasks that commit once.

create schema headrace_staging;
comment on schema headrace_staging is 'Headrace: what is being written and not committed yet; may be emptied at any time';

-- A write has the id that its writer chose: that of a streaming query, which writes batch after batch, or that of one
-- save. See writes.sql.
create table headrace_internal.writes (
    stream_id   int not null references headrace_internal.streams (id) on delete cascade,
    write_id    text collate "C" not null,
    streaming   boolean not null,               -- whether it may have further batches, at any time
    staging     text,                           -- the table that its tasks fill, quoted for format('%s'). Null for none
    batch       bigint not null default -1,     -- the last batch that was committed. None up to it is published again
    messages    bigint not null default 0,      -- the number published by all batches
    begun_at    timestamptz not null default clock_timestamp(),
    touched_at  timestamptz not null default clock_timestamp(),
    primary key (write_id, stream_id)           -- a write may have several streams
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The timeline, see history.sql. Unlogged, so that Postgres empties it at each recovery: after a crash, at a promotion,
-- from a base backup, at a restore to a point in time. An orderly restart keeps it. It has one row at most.
create unlogged table headrace_internal.history (
    id     uuid primary key default gen_random_uuid(),
    since  timestamptz not null default clock_timestamp(),
    single boolean not null unique default true check (single)
);
insert into headrace_internal.history default values;

-- Witnesses of transactions of services. Each transaction writes a row as the last statement before its COMMIT. Its xid
-- alone is no witness, since the server may assign it again after a crash or a failover. The janitor deletes old rows.
create table headrace_internal.commits (
    xid    xid8 not null,
    nonce  uuid not null,
    at     timestamptz not null default clock_timestamp(),
    primary key (xid, nonce)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Processes.

-- The heartbeats of processes, written every few seconds. Unlogged, because they are of no use after a crash.
create unlogged table headrace_internal.workers (
    id       uuid primary key,
    seen_at  timestamptz not null,
    facts    json not null,
    role_oid oid,                       -- the role with a grant that wrote it. Null for a member of the owner
    bytes    int not null default 0
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The terms of leaders, see leader.sql. Append-only like the cursors. Unlogged, because they are of no use after a crash.
create unlogged table headrace_internal.leaders (
    version    bigint primary key,
    candidate  uuid not null,
    until      timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What only new processes can bear, see revisions.sql. A migration inserts a row, and the janitor switches it on once
-- each running process has the revision that it needs.
create table headrace_internal.features (
    name            text primary key,
    needs           int not null,
    switched_on_at  timestamptz
);

-- Secrets that all servers of this database share. Without pgcrypto, random UUIDs are the strong random numbers that
-- every server has.
create table headrace_internal.secrets (
    name        text primary key,
    value       bytea not null,
    created_at  timestamptz not null default clock_timestamp()
);
insert into headrace_internal.secrets (name, value)
    values ('ack_ids', sha256(convert_to(concat(gen_random_uuid(), gen_random_uuid(), gen_random_uuid()), 'UTF8')));

-- Access tokens, as their SHA-256. A token is random and long, so that no slower hash is needed. Revoked tokens stay,
-- so that a server does not become open when its last token is revoked.
create table headrace_internal.tokens (
    id            text primary key,         -- the part of the token that is no secret
    name          text not null unique,
    digest        bytea not null,
    scopes        text[] not null,          -- publish, consume or admin, each alone or for one stream: publish:orders
    created_at    timestamptz not null default clock_timestamp(),
    expires_at    timestamptz,
    revoked_at    timestamptz
);

-- Sessions of the console, see store/catalog/sessions.py.

-- A browser has the secret in a cookie. Here is its SHA-256 only. A session ends with its token.
create table headrace_internal.sessions (
    digest      bytea primary key,
    token_id    text not null references headrace_internal.tokens (id) on delete cascade,
    mount       text not null,          -- the path of the server at which it is valid
    created_at  timestamptz not null,
    expires_at  timestamptz not null
);

create index sessions_of_token on headrace_internal.sessions (token_id, created_at);

-- What roles other than the owner may do, see docs/privileges.md and functions/catalog/grants.sql.

-- The functions and views for roles that `headrace grant` names. They run as the owner, and check these grants.
create schema headrace_granted;
comment on schema headrace_granted is 'Headrace: what roles with a grant call. `headrace grant` lets a role use it';

-- A role has the same number, its OID, for as long as it exists in its server. Another server has other numbers. A row
-- remembers its server, and `bound` is computed when the row is written. pg_dump leaves that out, so a restore computes it
-- in the new server. pg_upgrade keeps it, and the numbers of roles as well.

-- Return whether this is the server with an identifier.
create function headrace_internal.is_this_server(p_identifier bigint) returns boolean
language plpgsql immutable as $$
begin
    return p_identifier = (select system_identifier from pg_catalog.pg_control_system());
end $$;

-- Grants belong to roles and not to names, and so do heartbeats.
create table headrace_internal.grants (
    role        text collate "C" not null,
    privilege   text not null check (privilege in ('publish', 'consume', 'observe', 'admin')),
    stream_id   int not null default 0,     -- 0 for all streams, also those created later
    granted_at  timestamptz not null default clock_timestamp(),
    role_oid    oid not null,
    cluster     bigint not null,            -- the identifier of the server to which role_oid belongs
    bound       boolean not null generated always as (headrace_internal.is_this_server(cluster)) stored,
    primary key (stream_id, role_oid, privilege, cluster)
);
comment on column headrace_internal.grants.role is 'The name of the role when the grant was last looked at';

-- Fill in the number of the role that a new grant names. A row of a dump has one.
create function headrace_internal.bind_grant() returns trigger
language plpgsql as $$
begin
    if new.role_oid is null then
        new.role_oid := pg_catalog.to_regrole(pg_catalog.quote_ident(new.role));
        new.cluster := (select system_identifier from pg_catalog.pg_control_system());
        if new.role_oid is null then
            raise exception using errcode = 'undefined_object', message = pg_catalog.format(
                'There is no database role "%s". Create it first.', new.role);
        end if;
    end if;
    return new;
end $$;

create trigger bind_grant before insert on headrace_internal.grants for each row execute function headrace_internal.bind_grant();

-- What a named configuration manages, see docs/how-to/configuration-as-code.md. `headrace apply --prune` deletes nothing else.
create table headrace_internal.managed (
    configuration text collate "C" not null,
    kind          text collate "C" not null check (kind in ('stream', 'consumer', 'source', 'token', 'grant')),
    object        text[] collate "C" not null,  -- the names that lead to it, such as those of a stream and of its consumer
    identity      text not null,                -- of the object that was applied, so that a later one of the same name is another
    applied_at    timestamptz not null default clock_timestamp(),
    primary key (configuration, kind, object)
);

-- Several databases behind one server, see functions/catalog/databases.sql. The tables are used in the database that is given to
-- the server, and are empty in all others.

create table headrace_internal.databases (
    name        text collate "C" primary key,
    url_from    text not null,          -- where a server finds the URL: env:NAME or file:/path. It has no secret
    created_at  timestamptz not null default clock_timestamp()
);

-- The streams and sources of these databases. Their names are unique among all databases. A row is written before its
-- stream is created, and deleted after it.
create table headrace_internal.places (
    kind        text not null check (kind in ('stream', 'source')),
    name        text collate "C" not null,
    uid         uuid,                   -- the id in the API, null until it is known
    database    text collate "C" not null references headrace_internal.databases (name),
    placed_at   timestamptz not null default clock_timestamp(),
    primary key (kind, name)
);
create index places_by_uid on headrace_internal.places (uid);
create index places_by_database on headrace_internal.places (database, kind, name);

-- Jobs that redrive or purge dead letters in the background, see functions/messages/jobs.sql.

-- A job names its consumer by the number, without a foreign key, so that what was done is still known after the consumer
-- was deleted.
create table headrace_internal.jobs (
    id             bigint generated always as identity primary key,
    uid            uuid not null default gen_random_uuid() unique,      -- the id in the API
    kind           text not null check (kind in ('redrive', 'purge')),
    stream         text collate "C" not null,
    consumer       text collate "C" not null,
    consumer_id    int not null,
    choice         json,                -- which dead letters: headrace_internal.dead_letter_condition
    state          text not null default 'waiting' check (state in ('waiting', 'running', 'done', 'failed', 'cancelled')),
    total          bigint,              -- the number of dead letters at the beginning, null if counting took too long
    done           bigint not null default 0,       -- how many were redriven or purged
    place          bigint not null default 0,       -- all dead letters up to this seq were examined
    error          text,
    created_at     timestamptz not null,            -- dead letters that died later are left alone
    created_by     text not null,       -- the name of the token, or else the role
    finished_at    timestamptz,
    claims         int not null default 0,          -- counts the claims. A step of an older one is refused
    claimed_until  timestamptz,         -- when the claim ends, null if no server works on it
    worked_at      timestamptz          -- the time of the last claim
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index jobs_to_do on headrace_internal.jobs (worked_at nulls first, id) where state in ('waiting', 'running');
create index jobs_by_end on headrace_internal.jobs (finished_at) where finished_at is not null;

-- The audit log, see functions/watching/audit.sql, and samples for charts, see functions/watching/samples.sql.

-- A change that somebody made. The id contains the time in microseconds, so that the lists of several databases merge
-- by it, and a range of times is a range of ids.
create sequence headrace_internal.audit_ids;
create table headrace_internal.audit (
    id           bigint primary key,
    actor        text,
    via          text not null,
    role         text not null,
    action       text not null,
    stream       text collate "C",          -- its name, which stays after its deletion
    object_kind  text not null,
    object_name  text not null,
    details      json not null
);
alter sequence headrace_internal.audit_ids owned by headrace_internal.audit.id;
create index audit_by_stream on headrace_internal.audit (stream, id);

-- Figures of the past, for charts. A row is about p_step seconds from a time on. It has what was published and finished
-- in them, and the largest of each level. An object that did not change has no rows, but `total` has them as long as
-- samples are taken.
create table headrace_internal.samples (
    kind          smallint not null,        -- 0: all together, 1: a stream, 2: a consumer
    object_id     int not null,             -- 0 for all together
    step          int not null,             -- seconds
    at            timestamptz not null,
    published     bigint,                   -- null if unknown, as in the first sample of a process
    finished      bigint,
    lag           bigint,
    lag_seconds   real,
    in_flight     bigint,
    parked        bigint,
    blocked       bigint,
    dead_letters  bigint,
    primary key (kind, object_id, at, step)
) with (autovacuum_vacuum_scale_factor = 0.05);
create index samples_by_age on headrace_internal.samples (step, at);

-- Autovacuum does not analyze the tables that calls write all the time. From PostgreSQL 17 on it sleeps between the pages of its
-- sample while it holds a lock on the page (acquire_sample_rows), and each call that writes there waits for up to 8 ms. In small
-- tables that is the page which all calls write. The plans of their statements are kept, and need no statistics.

do $$
declare
    v_table text;
begin
    foreach v_table in array array['cursors', 'frozen_holes', 'leases', 'acks', 'parked', 'tails', 'completions', 'waits', 'commits',
                                   'capture_positions', 'leaders', 'workers'] loop
        execute format('alter table headrace_internal.%I set (autovacuum_analyze_threshold = 2147483647)', v_table);
    end loop;
end $$;
