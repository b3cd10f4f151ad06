-- Times that are remembered, roles by their number, and owners that check in.
-- Locks: headrace_internal.parked (access exclusive), headrace_internal.grants (access exclusive),
--  headrace_internal.grants (share row exclusive), headrace_internal.grants (share), headrace_internal.workers (access exclusive)

-- Retries remember their delay, so that they don't wait longer if the server's clock is set back.
alter table headrace_internal.parked add column delay float8;      -- seconds. Null for a message that is due at once

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

-- Grants belong to roles and not to names, and so do heartbeats.

-- A role has the same number, its OID, for as long as it exists in its server. Another server has other numbers. A row
-- remembers its server, and `bound` is computed when the row is written. pg_dump leaves that out, so a restore computes it
-- in the new server. pg_upgrade keeps it, and the numbers of roles as well.

-- Return whether this is the server with an identifier.
create function headrace_internal.is_this_server(p_identifier bigint) returns boolean
language plpgsql immutable as $$
begin
    return p_identifier = (select system_identifier from pg_catalog.pg_control_system());
end $$;

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

alter table headrace_internal.grants
    add column role_oid oid,
    add column cluster bigint;      -- the identifier of the server to which role_oid belongs

-- Until now a name counted, of a role that has rights to the schema.
update headrace_internal.grants as g set role_oid = r.oid, cluster = i.system_identifier
    from pg_roles as r, pg_control_system() as i
    where r.rolname = g.role and exists (
        select from pg_namespace as n cross join aclexplode(n.nspacl) as a where n.nspname = 'headrace_granted' and a.grantee = r.oid);
delete from headrace_internal.grants where role_oid is null;

alter table headrace_internal.grants
    alter column role_oid set not null,
    alter column cluster set not null,
    add column bound boolean not null generated always as (headrace_internal.is_this_server(cluster)) stored,
    drop constraint grants_pkey,
    add primary key (stream_id, role_oid, privilege, cluster);
comment on column headrace_internal.grants.role is 'The name of the role when the grant was last looked at';

create trigger bind_grant before insert on headrace_internal.grants for each row execute function headrace_internal.bind_grant();

drop function if exists headrace_internal.granted_role();

-- A heartbeat belongs to the role with a grant that wrote it, or to nobody if a member of the owner did.
alter table headrace_internal.workers
    add column role_oid oid,
    add column bytes int not null default 0;

-- Those that no process writes, see is_heartbeat in workers.sql.
delete from headrace_internal.workers where case when strpos(facts::text, '\u0000') > 0 then true
    else coalesce((facts ->> 'revision') !~ '^[0-9]{1,9}$', false) end;
