-- What roles other than the owner may do, see docs/privileges.md and functions/grants.sql.

-- The functions and views for roles that `headrace grant` names. They run as the owner, and check these grants.
create schema headrace_granted;
comment on schema headrace_granted is 'Headrace: what roles with a grant call. `headrace grant` lets a role use it';

-- By name, as a dump has them. A role that was renamed has no grant until it gets one again.
create table headrace_internal.grants (
    role        text collate "C" not null,
    privilege   text not null check (privilege in ('publish', 'consume', 'observe', 'admin')),
    stream_id   int not null default 0,     -- 0 for all streams, also those created later
    granted_at  timestamptz not null default clock_timestamp(),
    primary key (stream_id, role, privilege)
);
