-- Functions, their types and views are code, not data. A migration drops them all and creates them again, in its own
-- transaction.

do $$
declare
    v_drop  text;
begin
    -- Views depend on functions.
    for v_drop in
        select format('drop view %s', v.oid::regclass) from pg_class as v where v.relnamespace = 'headrace'::regnamespace and v.relkind = 'v'
        union all
        select format('drop function %s', p.oid::regprocedure) from pg_proc as p
        where p.pronamespace in ('headrace'::regnamespace, 'headrace_internal'::regnamespace)
    loop
        execute v_drop;
    end loop;
    -- In one statement, since types may contain each other.
    select 'drop type ' || string_agg(t.oid::regtype::text, ', ') into v_drop
        from pg_type as t join pg_class as c on c.oid = t.typrelid
        where t.typnamespace = 'headrace_internal'::regnamespace and c.relkind = 'c';
    if v_drop is not null then
        execute v_drop;
    end if;
end $$;
