-- What a named configuration manages, see docs/how-to/configuration-as-code.md. `headrace apply --prune` deletes nothing else.
--
-- Locks: none

create table headrace_internal.managed (
    configuration text collate "C" not null,
    kind          text collate "C" not null check (kind in ('stream', 'consumer', 'source', 'token', 'grant')),
    object        text[] collate "C" not null,  -- the names that lead to it, such as those of a stream and of its consumer
    identity      text not null,                -- of the object that was applied, so that a later one of the same name is another
    applied_at    timestamptz not null default clock_timestamp(),
    primary key (configuration, kind, object)
);
