-- Change capture: of each source of kind `postgres` who captures it, how far he has come, and how that goes.

-- A row of its own beside headrace.sources, since it changes all the time. `epoch` counts those that have held it: who writes with an
-- older one is refused. Which server positions are of is `system_id`; after a failover it is on another `timeline`.
create table headrace.captures (
    source_id   int primary key references headrace.sources (id) on delete cascade,
    paused_at   timestamptz,
    holder      uuid,               -- the process that captures it ...
    held_until  timestamptz,        -- ... unless it has not said so again by then
    epoch       bigint not null default 0,
    system_id   text,
    timeline    int,
    state       text not null default 'new',
    reason      text,               -- why it can't go on, or what it waits for
    mend        text,               -- the statement or command that mends it
    since       timestamptz not null default clock_timestamp(),
    facts       json,               -- as the process at work tells them every few seconds
    told_at     timestamptz
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- How far each is: everything that was committed up to `position` is in its stream. A row for each append, in the transaction of what it
-- appended, and the old ones go: a row that changed hundreds of times a second would decay while an old snapshot is open.
create table headrace.capture_positions (
    source_id  int not null references headrace.captures (source_id) on delete cascade,
    id         bigint generated always as identity,
    epoch      bigint not null,
    position   pg_lsn not null,
    captured   bigint not null,     -- changes, since ever
    primary key (source_id, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Tables that are read from their first row on, while their changes flow.
create table headrace.backfills (
    id           int generated always as identity primary key,
    uid          uuid not null default gen_random_uuid() unique,
    source_id    int not null references headrace.captures (source_id) on delete cascade,
    relation     text not null,             -- as the source's settings name it
    condition    json,                      -- which rows; null for all of them
    rate         int check (rate > 0),      -- rows a second, at most
    state        text not null default 'queued' check (state in ('queued', 'running', 'done', 'cancelled', 'failed')),
    reason       text,
    total        bigint,                    -- rows, as estimated at its start
    read         bigint not null default 0,
    published    bigint not null default 0, -- without those of which a newer change was captured meanwhile
    place        json,                      -- the key of the last row that was read
    created_at   timestamptz not null default clock_timestamp(),
    started_at   timestamptz,
    updated_at   timestamptz,
    finished_at  timestamptz
) with (fillfactor = 50);
create unique index backfills_under_way on headrace.backfills (source_id, relation) where state in ('queued', 'running');

-- Changes that could not be made into messages: mostly, since a transform failed on them.
create table headrace.capture_failures (
    id         bigint generated always as identity primary key,
    source_id  int not null references headrace.captures (source_id) on delete cascade,
    key        text,                        -- null if even that could not be made
    data       json not null,               -- the change, before it was transformed
    error      text not null,
    failed_at  timestamptz not null default clock_timestamp(),
    attempts   int not null default 1,
    retry      boolean not null default false
);
create index capture_failures_of_source on headrace.capture_failures (source_id, id);
create index capture_failures_to_retry on headrace.capture_failures (source_id, id) where retry;
