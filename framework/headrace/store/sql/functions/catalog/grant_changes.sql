-- grant_changes: what is called before and after the table of the grants changes, see grants.sql.
--
-- A grant belongs to a role by its number, see migration 29.

-- Remove the grants of roles that were dropped or have lost their rights to the schema headrace_granted, as by DROP OWNED.
-- Note the present names of the others. Call it before each change of the grants.
create or replace function headrace_internal.remove_stale_grants() returns void
language plpgsql as $$
begin
    perform pg_advisory_xact_lock(1212498508, -1);      -- as an upgrade: both change the rights to functions
    delete from headrace_internal.grants as g where g.bound and not exists (
        select from headrace_internal.roles_with_rights() as r where r.role_oid = g.role_oid);
    update headrace_internal.grants as g set role = r.rolname, cluster = i.system_identifier
        from pg_catalog.pg_roles as r, pg_catalog.pg_control_system() as i
        where g.bound and r.oid = g.role_oid and (g.role <> r.rolname or g.cluster <> i.system_identifier);
end $$;

-- Give the grants of a dump of another server to the roles of the same names that have rights to the schema
-- headrace_granted, which pg_dump keeps by name. Returns how many.
create or replace function headrace_internal.restore_grants() returns int
language plpgsql as $$
declare
    v_count  int;
begin
    perform headrace_internal.remove_stale_grants();
    with moved as (
        delete from headrace_internal.grants as g using headrace_internal.roles_with_rights() as r
            where not g.bound and g.role = r.role returning g.role, g.privilege, g.stream_id, g.granted_at
    )
    insert into headrace_internal.grants (role, privilege, stream_id, granted_at)
        select m.role, m.privilege, m.stream_id, m.granted_at from moved as m on conflict do nothing;
    get diagnostics v_count = row_count;
    perform headrace_internal.apply_grants();
    return v_count;
end $$;

-- Return the roles that may use the schema headrace_granted, without its owner.
create or replace function headrace_internal.roles_with_rights() returns table (role_oid oid, role name)
language plpgsql stable as $$
begin
    return query
        select distinct r.oid, r.rolname
        from pg_catalog.pg_namespace as n cross join aclexplode(n.nspacl) as a join pg_catalog.pg_roles as r on r.oid = a.grantee
        where n.nspname = 'headrace_granted' and a.grantee <> n.nspowner;
end $$;

-- Return the functions and the views of schemas, as GRANT takes them: those that belong to the owner of their schema.
-- Other roles may have put objects of their own there, which only they can grant.
create or replace function headrace_internal.owned_objects(p_schemas text[], out functions text, out views text)
language plpgsql stable as $$
begin
    select string_agg(p.oid::regprocedure::text, ', ') into functions
        from pg_catalog.pg_proc as p join pg_catalog.pg_namespace as n on n.oid = p.pronamespace
        where n.nspname = any (p_schemas) and p.proowner = n.nspowner;
    select string_agg(c.oid::regclass::text, ', ') into views
        from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
        where n.nspname = any (p_schemas) and c.relowner = n.nspowner and c.relkind = 'v';
end $$;

-- Let the roles of headrace_internal.grants use headrace and headrace_granted, and no role that has no grant any more.
-- What a function of these schemas does for a role, it checks itself. Call it after each change of the grants.
create or replace function headrace_internal.apply_grants() returns void
language plpgsql as $$
declare
    v_ours  record;
    v_role  record;
begin
    v_ours := headrace_internal.owned_objects('{headrace,headrace_granted}');
    -- Not to roles that have all of it: each right is a new version of a row of the catalog.
    for v_role in
        select quote_ident(r.rolname) as name, g.administers
        from (select role_oid, bool_or(privilege = 'admin' and stream_id = 0) as administers from headrace_internal.grants
              where bound group by role_oid) as g
        join pg_catalog.pg_roles as r on r.oid = g.role_oid
        where exists (
                select from pg_catalog.pg_proc as p join pg_catalog.pg_namespace as n on n.oid = p.pronamespace and n.nspowner = p.proowner
                where n.nspname in ('headrace', 'headrace_granted')
                    and not exists (select from aclexplode(p.proacl) as a where a.grantee = r.oid))
           or exists (
                select from pg_catalog.pg_class as c join pg_catalog.pg_namespace as n on n.oid = c.relnamespace and n.nspowner = c.relowner
                where n.nspname in ('headrace', 'headrace_granted')
                    and c.relkind = 'v' and not exists (select from aclexplode(c.relacl) as a where a.grantee = r.oid and a.privilege_type = 'SELECT'))
           or (select count(*) from pg_catalog.pg_namespace as n cross join aclexplode(n.nspacl) as a
               where n.nspname in ('headrace', 'headrace_granted') and a.grantee = r.oid and a.privilege_type = 'USAGE') < 2
           or g.administers is distinct from exists (
                select from pg_catalog.pg_class as c cross join aclexplode(c.relacl) as a
                where c.oid = 'headrace_granted.sessions'::regclass and a.grantee = r.oid and a.privilege_type = 'INSERT')
    loop
        execute format('grant usage on schema headrace, headrace_granted to %s', v_role.name);
        execute format('grant execute on function %s to %s', v_ours.functions, v_role.name);
        execute format('grant select on %s to %s', v_ours.views, v_role.name);
        execute format(case when v_role.administers then 'grant insert, update, delete on headrace_granted.tokens, headrace_granted.sessions to %s'
                            else 'revoke insert, update, delete on headrace_granted.tokens, headrace_granted.sessions from %s' end, v_role.name);
    end loop;
    for v_role in
        select quote_ident(r.role) as name from headrace_internal.roles_with_rights() as r
        where not exists (select from headrace_internal.grants as g where g.role_oid = r.role_oid and g.bound or g.role = r.role and not g.bound)
    loop
        execute format('revoke all on function %s from %s', v_ours.functions, v_role.name);
        execute format('revoke all on %s from %s', v_ours.views, v_role.name);
        execute format('revoke all on schema headrace, headrace_granted from %s', v_role.name);
    end loop;
end $$;
