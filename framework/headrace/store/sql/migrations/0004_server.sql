-- What the server needs: ids that mean the same everywhere, push consumers, sources, access tokens, and who is at work.

alter table headrace.streams
    add column uid  uuid not null default gen_random_uuid() unique;
alter table headrace.consumers
    add column uid   uuid not null default gen_random_uuid() unique,
    add column push  json;          -- where to push messages to, and how; null for a consumer that pulls

-- Keys that all servers of this database share. Without pgcrypto, random UUIDs are the strong random numbers that every server has.
create table headrace.secrets (
    name        text primary key,
    value       bytea not null,
    created_at  timestamptz not null default clock_timestamp()
);
insert into headrace.secrets (name, value)
    values ('ack_ids', sha256(convert_to(concat(gen_random_uuid(), gen_random_uuid(), gen_random_uuid()), 'UTF8')));

-- Access tokens. Of a token only its SHA-256 is kept: it is random and long, so nothing slower is needed. What is revoked stays, so
-- that revoking the last one does not open the door.
create table headrace.tokens (
    id            text primary key,         -- the part of the token that is no secret
    name          text not null unique,
    digest        bytea not null,
    scopes        text[] not null,          -- publish, consume or admin, each alone or for one stream: publish:orders
    created_at    timestamptz not null default clock_timestamp(),
    expires_at    timestamptz,
    revoked_at    timestamptz
);

-- Where messages come from that nobody publishes: webhooks, tables.
create table headrace.sources (
    id          int generated always as identity primary key,
    uid         uuid not null default gen_random_uuid() unique,
    name        text collate "C" not null unique,
    kind        text not null check (kind in ('webhook', 'postgres')),
    stream_id   int not null references headrace.streams (id) on delete cascade,
    settings    json not null,
    created_at  timestamptz not null default clock_timestamp(),
    updated_at  timestamptz not null default clock_timestamp()
);

-- Processes at work, as each of them tells of itself every few seconds. Worth nothing after a crash, hence unlogged.
create unlogged table headrace.workers (
    id       uuid primary key,
    seen_at  timestamptz not null,
    facts    json not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Acks of several messages, few as they are: whoever acks one of them alone looks here, and not through all of its lease's.
create index acks_of_several on headrace.acks (consumer_id, lease_id) where cardinality(seqs) > 1;
