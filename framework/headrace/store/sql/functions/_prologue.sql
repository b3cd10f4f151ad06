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
    for v_drop in
        select format('drop type %s', t.oid::regtype) from pg_type as t join pg_class as c on c.oid = t.typrelid
        where t.typnamespace = 'headrace'::regnamespace and c.relkind = 'c'
    loop
        execute v_drop;
    end loop;
end $$;
