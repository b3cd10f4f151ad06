-- Functions that read hot tables only by their indexes turn other scans off, and that adds a cost of ten thousand
-- million to every plan. A server with stock settings (jit = on) would compile each of their statements, which takes
-- a hundred times as long as running them. So every function that turns a kind of scan off turns jit off, too.

do $$
declare
    v_alter  text;
begin
    for v_alter in
        select format('alter function %s set jit = off', p.oid::regprocedure) from pg_proc as p
        where p.pronamespace in ('headrace'::regnamespace, 'headrace_internal'::regnamespace) and p.proconfig && '{enable_seqscan=off,enable_sort=off}'
    loop
        execute v_alter;
    end loop;
end $$;
