-- Several databases behind one server, see functions/databases.sql. The tables are used in the database that is given to
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
