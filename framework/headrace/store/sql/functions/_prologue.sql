-- Functions and their types are code, not data. A migration drops them all and creates them again, in its own
-- transaction.

do $$
declare
    v_drop  text;
begin
    for v_drop in
        select format('drop function %s', p.oid::regprocedure) from pg_proc as p where p.pronamespace = 'headrace'::regnamespace
    loop
        execute v_drop;
    end loop;
    -- In one statement, since types may contain each other.
    select 'drop type ' || string_agg(t.oid::regtype::text, ', ') into v_drop
        from pg_type as t join pg_class as c on c.oid = t.typrelid
        where t.typnamespace = 'headrace'::regnamespace and c.relkind = 'c';
    if v_drop is not null then
        execute v_drop;
    end if;
end $$;
