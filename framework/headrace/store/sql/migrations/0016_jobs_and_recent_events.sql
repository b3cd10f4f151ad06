-- Jobs that redrive or purge dead letters in the background, see functions/jobs.sql, and what webhooks and push consumers
-- did lately, see functions/recent_events.sql.
--
-- Locks: headrace_internal.sources (share row exclusive), headrace_internal.consumers (share row exclusive)

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
    filters        text[],
    filter_where   json,
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
