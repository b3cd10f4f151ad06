-- What the tables of sources consisted of when they were last looked at.

-- A difference that changes rows without a message in the WAL, such as an attached partition, is found by a comparison
-- with this, also after a restart. `fingerprint` is null for a table that was captured before there was this table.
create table headrace_internal.captured_tables (
    source_id    int not null references headrace_internal.captures (source_id) on delete cascade,
    relation     text not null,     -- as the source's settings name it
    fingerprint  json,
    resync       uuid,              -- the backfill that was requested for the last such difference
    primary key (source_id, relation)
);

insert into headrace_internal.captured_tables (source_id, relation)
    select distinct c.source_id, t.relation
    from headrace_internal.captures as c join headrace_internal.sources as o on o.id = c.source_id
         cross join lateral json_array_elements_text(o.settings -> 'tables') as t(relation)
    where exists (select from headrace_internal.capture_positions as p where p.source_id = c.source_id);
