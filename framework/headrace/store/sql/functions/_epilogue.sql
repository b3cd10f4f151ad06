-- Functions that read hot tables by their indexes alone turn other ways off, and that gives every plan a cost of ten thousand
-- millions. A server with stock settings (jit = on) would compile each of their statements, which takes a hundred times as long as to
-- run them. So whoever turns off a way to read turns off the compiling, too.

do $$
declare
    v_alter  text;
begin
    for v_alter in
        select format('alter function %s set jit = off', p.oid::regprocedure) from pg_proc as p
        where p.pronamespace = 'headrace'::regnamespace and p.proconfig && '{enable_seqscan=off,enable_sort=off}'
    loop
        execute v_alter;
    end loop;
end $$;
