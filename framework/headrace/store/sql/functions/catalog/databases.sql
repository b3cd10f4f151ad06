-- databases: several databases behind one server. The configuration database has the list of the others, and knows which
-- stream and which source lives where. Each of the others is a complete Headrace, so that workers use it directly.
--
-- A name is PLACED here before its stream is created there. So no name is ever in two databases through a server, and a
-- crash in between leaves a placed name without a stream, which the next creation in the same database uses, and which
-- `reconcile_places` removes after some minutes.

-- Return an id of this database, which no other database has, also if it is a copy.
-- Granted: any
create or replace function headrace_internal.database_identity() returns uuid
language plpgsql as $$
begin
    perform headrace_internal.begin_timeline();
    return (select headrace_internal.timeline_identity(h.id, h.xmin) from headrace_internal.history as h order by h.id limit 1);
end $$;

-- Add a database. Returns false if one of this name exists.
-- Granted: all
create or replace function headrace_internal.add_database(p_name text, p_url_from text) returns boolean
language plpgsql as $$
begin
    insert into headrace_internal.databases (name, url_from) values (p_name, p_url_from) on conflict do nothing;
    return found;
end $$;

-- Remove a database from the list. It keeps its streams. Returns false if there is none of this name.
-- Granted: all
create or replace function headrace_internal.remove_database(p_name text) returns boolean
language plpgsql as $$
begin
    perform pg_advisory_xact_lock(1212498508, 0);   -- as creations do, so that none places a name meanwhile
    delete from headrace_internal.places where database = p_name;
    delete from headrace_internal.databases where name = p_name;
    return found;
end $$;

-- Return the database that a name is placed in, null for none.
create or replace function headrace_internal.place_of(p_kind text, p_name text) returns text
language sql as $$
    select database from headrace_internal.places where kind = p_kind and name = p_name
$$;

-- Raise if a name is placed in another database, since names are unique among all.
create or replace function headrace_internal.require_unplaced(p_kind text, p_name text) returns void
language plpgsql as $$
declare
    v_database  text := headrace_internal.place_of(p_kind, p_name);
begin
    if v_database is not null then
        raise exception using errcode = 'HR004', column = 'name', message = format(
            'The name of the %s %L is taken in the database %L: choose another name.', p_kind, p_name, v_database);
    end if;
end $$;

-- Place a name in a database before it is created there. Returns the database that has it: p_database, another one, or an
-- empty string if it is in this one.
-- Granted: all
create or replace function headrace_internal.place_name(p_kind text, p_name text, p_database text) returns text
language plpgsql as $$
declare
    v_database  text;
begin
    perform pg_advisory_xact_lock(1212498508, 0);   -- as declare_stream and create_source do
    if p_kind = 'stream' and exists (select from headrace_internal.streams where name = p_name)
            or p_kind = 'source' and exists (select from headrace_internal.sources where name = p_name) then
        return '';
    end if;
    insert into headrace_internal.places as p (kind, name, database) values (p_kind, p_name, p_database)
        on conflict (kind, name) do update set placed_at = case when p.database = p_database then clock_timestamp() else p.placed_at end
        returning p.database into v_database;
    return v_database;
end $$;

-- Note the id of what was created under a placed name.
-- Granted: all
create or replace function headrace_internal.confirm_place(p_kind text, p_name text, p_database text, p_uid uuid) returns void
language sql as $$
    update headrace_internal.places set uid = p_uid
        where kind = p_kind and name = p_name and database = p_database and uid is distinct from p_uid
$$;

-- Forget where a name was placed.
-- Granted: all
create or replace function headrace_internal.forget_place(p_kind text, p_name text, p_database text) returns void
language sql as $$
    delete from headrace_internal.places where kind = p_kind and name = p_name and database = p_database
$$;

-- Make the places of a database those of the streams or sources that it has, within the names from p_after up to p_last.
-- Workers create and delete streams there without a server. Names that another database has stay there.
-- p_grace: names placed within this time stay, because they may be about to be created.
-- Granted: all
create or replace function headrace_internal.reconcile_places(
    p_kind text, p_database text, p_names text[], p_uids uuid[], p_after text, p_last text, p_grace interval,
    out conflicts text[], out changed boolean)
language plpgsql as $$
declare
    v_removed  int;
    v_placed   int;
begin
    perform pg_advisory_xact_lock(1212498508, 0);
    delete from headrace_internal.places as p
        where p.database = p_database and p.kind = p_kind and (p_after is null or p.name > p_after) and (p_last is null or p.name <= p_last)
            and p.name <> all (p_names) and p.placed_at < clock_timestamp() - p_grace;
    get diagnostics v_removed = row_count;
    -- As if placed long ago, so that a name that was deleted meanwhile is forgotten the next time.
    insert into headrace_internal.places as p (kind, name, uid, database, placed_at)
        select p_kind, n.name, n.uid, p_database, clock_timestamp() - p_grace
        from unnest(p_names, p_uids) as n (name, uid)
        where not exists (select from headrace_internal.streams as s where p_kind = 'stream' and s.name = n.name)
            and not exists (select from headrace_internal.sources as s where p_kind = 'source' and s.name = n.name)
        on conflict (kind, name) do update set uid = excluded.uid
            where p.database = excluded.database and p.uid is distinct from excluded.uid;
    get diagnostics v_placed = row_count;
    changed := v_removed + v_placed > 0;
    conflicts := array(
        select n.name from unnest(p_names) as n (name)
        where not exists (
            select from headrace_internal.places as p where p.kind = p_kind and p.name = n.name and p.database = p_database)
        order by 1);
end $$;
