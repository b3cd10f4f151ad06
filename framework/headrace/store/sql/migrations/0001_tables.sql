-- The catalogue, and what a consumer remembers. Messages live in one table per stream: see streams.sql.
--
-- A message costs no row of its own per consumer. What a consumer has seen is one cursor; what is being worked
-- on is one lease row per batch; only messages that must wait (a retry, a busy key) are parked row by row.

create table headrace.streams (
    id          int generated always as identity primary key,
    name        text collate "C" not null unique,
    relation    text not null,      -- the table of its messages, quoted and ready for format('%s')
    created_at  timestamptz not null default clock_timestamp()
);

create table headrace.consumers (
    id               int generated always as identity primary key,
    stream_id        int not null references headrace.streams (id) on delete cascade,
    name             text collate "C" not null,
    filters          text[] not null,
    condition        text not null,     -- the filters as SQL over `key`, quoted by Postgres: headrace.key_condition
    ordered          boolean not null,
    ack_wait         interval not null,
    max_ack_pending  int not null check (max_ack_pending > 0),
    max_deliver      int not null check (max_deliver = -1 or max_deliver > 0),
    backoff          json not null,
    on_exhausted     text not null check (on_exhausted in ('dead_letter', 'block', 'drop')),
    created_at       timestamptz not null default clock_timestamp(),
    updated_at       timestamptz not null default clock_timestamp(),
    unique (stream_id, name)
);

-- Append-only: the next version is inserted and the last one deleted, and readers ask for the newest first. A row
-- updated in place would grow a chain of dead versions under an old snapshot, and every lookup would walk it.
create table headrace.cursors (
    consumer_id   int not null references headrace.consumers (id) on delete cascade,
    version       bigint not null,
    position      bigint not null,                  -- everything up to here has been looked at, but for the holes
    young_holes   int8multirange not null default '{}',
    old_holes     int8multirange not null default '{}',
    old_stamp     xid8,                             -- who could still fill the old holes has a smaller xid
    suspects      text[],                           -- ... or, while an old snapshot pins xmin, is one of these
    suspects_at   timestamptz,
    lease_floor   bigint not null default 0,        -- no live lease has a smaller id
    parked_floor  bigint not null default 0,        -- no parked message has a smaller seq
    primary key (consumer_id, version)
);

create sequence headrace.lease_ids;

create table headrace.leases (
    consumer_id  int not null references headrace.consumers (id) on delete cascade,
    lease_id     bigint not null,
    owner        uuid not null,
    expires_at   timestamptz not null,
    held         int not null,          -- how many messages, so that counting needs no array
    lowest       bigint not null,       -- the smallest seq
    seqs         bigint[] not null,
    hashes       bigint[] not null,     -- of their keys, in the same order
    attempts     int[],                 -- likewise; null when each is a first attempt
    primary key (consumer_id, lease_id)
);
-- Large batches would be compressed and moved out of line, only to be deleted milliseconds later.
alter table headrace.leases alter column seqs set storage external;
alter table headrace.leases alter column hashes set storage external;
alter table headrace.leases alter column attempts set storage external;

-- Messages that were read but can't be delivered yet: a retry that is not due, a key that another owner is busy with.
create table headrace.parked (
    consumer_id  int not null references headrace.consumers (id) on delete cascade,
    seq          bigint not null,
    key_hash     bigint not null,
    attempts     int not null,          -- deliveries so far that counted
    due_at       timestamptz not null,
    primary key (consumer_id, seq)
);
create index parked_by_key on headrace.parked (consumer_id, key_hash, seq);

-- Messages of keys that wait for a person (on_exhausted = 'block'). They are kept apart from the parked ones, so that
-- a blocked key, however long, costs the others nothing.
create table headrace.blocked (
    consumer_id  int not null references headrace.consumers (id) on delete cascade,
    key_hash     bigint not null,
    seq          bigint not null,
    primary key (consumer_id, key_hash, seq)
);

create table headrace.dead_letters (
    consumer_id  int not null references headrace.consumers (id) on delete cascade,
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

-- Who waits for a stream's next message, and until when; publishers notify only then. See wake.sql.
create table headrace.waiting (
    consumer_id  int primary key references headrace.consumers (id) on delete cascade,
    stream_id    int not null references headrace.streams (id) on delete cascade,
    until        timestamptz not null
);
create index waiting_by_stream on headrace.waiting (stream_id);

-- Hot little tables: vacuum early, by count and not by share, and leave room for rewriting in place.
alter table headrace.cursors set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
alter table headrace.leases  set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, fillfactor = 70);
alter table headrace.parked  set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
