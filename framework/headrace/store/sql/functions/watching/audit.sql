-- audit: an entry for each change that somebody made.
--
-- An entry is written in the transaction of the change. It names streams and other objects by their names, without
-- references, so that it outlives them. It is written once and never updated.

-- Return the first id of a time. The lowest 10 bits tell entries of the same microsecond apart.
create or replace function headrace_internal.audit_id(p_at timestamptz) returns bigint
language sql stable as $$
    select (extract(epoch from p_at) * 1000000)::bigint << 10
$$;

-- Record a change. Returns the id of the entry. The role is that of the session, which no argument chooses.
create or replace function headrace_internal.record_change(
    p_actor text, p_via text, p_action text, p_of_stream text, p_kind text, p_name text, p_details json,
    p_now timestamptz default clock_timestamp()
) returns bigint
language plpgsql as $$
declare
    v_id  bigint;
begin
    loop
        v_id := headrace_internal.audit_id(p_now) | (nextval('headrace_internal.audit_ids') & 1023);
        insert into headrace_internal.audit (id, actor, via, role, action, stream, object_kind, object_name, details)
            values (v_id, left(p_actor, 200), p_via, case current_setting('role') when 'none' then session_user else current_setting('role') end,
                    p_action, p_of_stream, p_kind, left(p_name, 500), p_details)
            on conflict do nothing;
        exit when found;
    end loop;
    return v_id;
end $$;

-- Return entries, the newest first: those older than p_after, or the ones that are newer than p_before, the oldest of
-- these first. p_stream: only entries of this stream. p_streams: only entries of any of these. p_choice: {"actor", "action",
-- "since", "until"}, each optional. The action is one, or what comes before its dot.
-- Granted: admin
create or replace function headrace_internal.audit_page(
    p_stream text, p_streams text[], p_choice json, p_limit int, p_after bigint, p_before bigint
)
returns table (id bigint, actor text, via text, role text, action text, stream text, object_kind text, object_name text, details json)
language sql as $$
    select a.id, a.actor, a.via, a.role, a.action, a.stream, a.object_kind, a.object_name, a.details
    from json_to_record(p_choice) as c(actor text, action text, since timestamptz, until timestamptz) cross join headrace_internal.audit as a
    where a.id < least(p_after, headrace_internal.audit_id(c.until), 9223372036854775807)
      and a.id >= greatest(p_before + 1, headrace_internal.audit_id(c.since), 0)
      and (p_stream is null or a.stream = p_stream) and (p_streams is null or a.stream = any (p_streams))
      and (c.actor is null or a.actor = c.actor)
      and (c.action is null or c.action in (a.action, split_part(a.action, '.', 1)))
    order by case when p_before is null then -a.id end, a.id limit p_limit
$$;

-- Delete entries that are older than p_keep, and those beyond p_entries, at most p_limit in one call. Of the latter, those
-- of the role with the most entries go first, so that no role can drive out the entries of others. Returns how many were
-- deleted.
-- Granted: all
create or replace function headrace_internal.delete_old_changes(
    p_keep interval, p_entries bigint, p_limit int, p_now timestamptz default clock_timestamp()
) returns bigint
language plpgsql set enable_seqscan = off as $$
declare
    v_below    bigint := headrace_internal.audit_id(p_now - p_keep);
    v_deleted  bigint;
    v_more     bigint := 0;
begin
    delete from headrace_internal.audit as a
        where a.id = any (array(select o.id from headrace_internal.audit as o where o.id < v_below order by o.id limit p_limit));
    get diagnostics v_deleted = row_count;
    if exists (select from headrace_internal.audit as a order by a.id desc offset p_entries limit 1) then
        delete from headrace_internal.audit as a where a.id = any (array(
            select o.id from headrace_internal.audit as o
            where o.role = (select r.role from headrace_internal.audit as r group by r.role order by count(*) desc, r.role limit 1)
            order by o.id limit least((select count(*) from headrace_internal.audit) - p_entries, p_limit - v_deleted)));
        get diagnostics v_more = row_count;
    end if;
    return v_deleted + v_more;
end $$;
