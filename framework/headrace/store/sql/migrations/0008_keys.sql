-- Every table can be part of a publication: a row that is updated or deleted must be told apart on the other side.

-- The unique index of the acks is on an expression, which can't be a replica identity. A key of its own would cost each ack another
-- column or another index; a row is small, and is logged in full only where it is published.
alter table headrace.acks replica identity full;

-- A seq is drawn by the INSERT that uses it, or the gap-aware cursor may be past it: an INSERT that names one is refused from now on.
do $$
declare
    v_stream  headrace.streams;
    v_last    bigint;
    v_grants  text[];
    v_grant   text;
begin
    for v_stream in select * from headrace.streams where not one_message_per_key order by id loop
        execute format('lock table %s', v_stream.relation);
        execute format('select greatest(max(seq), pg_sequence_last_value(%L::regclass)) from %s', v_stream.sequence, v_stream.relation)
            into v_last;
        -- The identity has a sequence of its own, under the same name; those who may read the old one may read it.
        v_grants := array(
            select format('grant %s on sequence %s to %s', acl.privilege_type, v_stream.sequence,
                          case acl.grantee when 0 then 'public' else acl.grantee::regrole::text end)
                   || case when acl.is_grantable then ' with grant option' else '' end
            from pg_class as c cross join aclexplode(c.relacl) as acl
            where c.oid = v_stream.sequence::regclass and acl.grantee <> c.relowner);
        execute format('alter table %s alter seq drop default', v_stream.relation);
        execute format('drop sequence %s', v_stream.sequence);
        execute format('alter table %s alter seq add generated always as identity (sequence name %s)', v_stream.relation, v_stream.sequence);
        if v_last is not null then
            perform setval(v_stream.sequence::regclass, v_last);
        end if;
        foreach v_grant in array v_grants loop
            execute v_grant;
        end loop;
    end loop;
end $$;
