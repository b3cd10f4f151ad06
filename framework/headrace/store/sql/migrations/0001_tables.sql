-- The tables of Headrace. Messages are stored in one table per stream, in the schema headrace_streams, see
-- functions/streams.sql.
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
    full_until           timestamptz,       -- publishing is refused until then. It is renewed while the stream is full
    trimmed              bigint not null default 0,         -- the last seq that was removed row by row
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
    max_ack_pending  int not null check (max_ack_pending > 0),
    max_deliver      int not null check (max_deliver = -1 or max_deliver > 0),
    backoff          json not null,
    on_exhausted     text not null check (on_exhausted in ('dead_letter', 'block', 'drop')),
    max_waiting      int not null default 20 check (max_waiting > 0),
    rate_limit       float8 check (rate_limit > 0),     -- messages a second, null for no limit
    rate_burst       int check (rate_burst > 0),        -- null for as many as are delivered in one second
    push             json,              -- where and how to push messages, null for a consumer that pulls
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
-- A floor is a lower bound from which an index is read, because below it there may be very many dead rows.
create table headrace_internal.cursors (
    consumer_id    int not null references headrace_internal.consumers (id) on delete cascade,
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
    consumer_id  int not null references headrace_internal.consumers (id) on delete cascade,
    lease_id     bigint not null,
    owner        uuid not null,
    since        timestamptz not null default '-infinity',  -- messages that are put back are not due before
    expires_at   timestamptz not null,
    held         int not null,          -- the number of messages, so that counting needs no array
    lowest       bigint not null,       -- no message has a smaller seq
    seqs         bigint[] not null,
    hashes       bigint[] not null,     -- of the messages' keys, in the order of seqs
    attempts     int[],                 -- in that order. Null when each message is at its first attempt
    crashes      int[],                 -- in that order, how often in a row the worker died. Null when none did
    started      bigint[],              -- of the messages that crashed before, those that were started
    primary key (consumer_id, lease_id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, fillfactor = 70);
-- Large batches would be compressed and moved out of line, and be deleted milliseconds later.
alter table headrace_internal.leases
    alter column seqs set storage external, alter column hashes set storage external, alter column attempts set storage external,
    alter column crashes set storage external, alter column started set storage external;

-- Acks that were committed together with the effects of a handler, one row for each lease and transaction. The lease
-- holds these messages until it is settled or expires, see transactions.sql. There is no foreign key, because it would
-- lock the consumer's row at each ack.
create table headrace_internal.acks (
    consumer_id  int not null,
    lease_id     bigint not null,
    seqs         bigint[] not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
create unique index acks_by_lease on headrace_internal.acks (consumer_id, lease_id, (seqs[1]));    -- no message is acked twice
-- Acks of several messages are few. An ack of one message looks for the message here, and not in all acks of its lease.
create index acks_of_several on headrace_internal.acks (consumer_id, lease_id) where cardinality(seqs) > 1;
-- The unique index is on an expression, and so can't be the replica identity. A primary key would cost each ack another
-- column or another index. A row is small, and is logged in full only where it is published.
alter table headrace_internal.acks replica identity full;

-- Messages that were read and can't be delivered yet: retries that are not due, messages of keys that another owner
-- holds, and messages that were put back. See parking.sql.
create table headrace_internal.parked (
    consumer_id  int not null references headrace_internal.consumers (id) on delete cascade,
    seq          bigint not null,
    key_hash     bigint not null,
    attempts     int not null,              -- the deliveries that counted
    crashes      int not null default 0,    -- how often in a row its worker died
    due_at       timestamptz not null,
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
    primary key (consumer_id, seq)
);
create index dead_letters_blocking on headrace_internal.dead_letters (consumer_id, key_hash, seq) where blocks;
-- For the lowest one that blocks a key. Below it there may be very many dead rows.
create index dead_letters_that_block on headrace_internal.dead_letters (consumer_id, blocks, seq);

-- Messages to deliver to a consumer apart from its cursor, before all others: a replay, or the last of each key.
create table headrace_internal.replays (
    consumer_id  int not null references headrace_internal.consumers (id) on delete cascade,
    seq          bigint not null,
    key_hash     bigint not null,
    primary key (consumer_id, seq)
);

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

-- Captured tables whose existing rows are published while their changes are captured.
create table headrace_internal.backfills (
    id           int generated always as identity primary key,
    uid          uuid not null default gen_random_uuid() unique,
    source_id    int not null references headrace_internal.captures (source_id) on delete cascade,
    relation     text not null,             -- as the source's settings name it
    condition    json,                      -- which rows, null for all
    rate         int check (rate > 0),      -- the maximal number of rows a second
    state        text not null default 'queued' check (state in ('queued', 'running', 'done', 'cancelled', 'failed')),
    reason       text,
    total        bigint,                    -- the number of rows, as estimated at the start
    read         bigint not null default 0,
    published    bigint not null default 0, -- without the rows for which a newer change was captured meanwhile
    place        json,                      -- the key of the last row that was read
    created_at   timestamptz not null default clock_timestamp(),
    started_at   timestamptz,
    updated_at   timestamptz,
    finished_at  timestamptz
) with (fillfactor = 50);
create unique index backfills_under_way on headrace_internal.backfills (source_id, relation) where state in ('queued', 'running');

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
    primary key (stream_id, write_id)
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
    facts    json not null
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
