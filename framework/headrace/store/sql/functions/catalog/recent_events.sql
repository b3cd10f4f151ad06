-- What webhooks and push consumers did lately. A server gathers these for a second and writes them in one call, so many
-- events cost as few writes as one. The last ones are kept.

-- Record deliveries to webhooks: [{"source", "at", "status", "reason", "bytes", "key", "message_id", "remote"}]. Each source
-- keeps the last p_keep. message_id: under which the message was published, null for none.
-- Granted: all
create or replace function headrace_internal.record_deliveries(p_deliveries json, p_keep int) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into headrace_internal.deliveries (source_id, at, accepted, status, reason, bytes, key, seq, remote)
        select s.id, d.at, d.status < 300, d.status, d.reason, d.bytes, d.key, i.seq, d.remote
        from rows from (json_to_recordset(p_deliveries) as (
            source uuid, at timestamptz, status int, reason text, bytes bigint, key text, message_id text, remote text)) with ordinality
            as d(source, at, status, reason, bytes, key, message_id, remote, place)
        join headrace_internal.sources as s on s.uid = d.source
        left join headrace_internal.message_ids as i on i.stream_id = s.stream_id and i.message_id = d.message_id
        order by s.id, d.place
        for key share of s skip locked;     -- a source that is deleted now would fail the foreign key
    delete from headrace_internal.deliveries as d using (
        select s.id, (select o.id from headrace_internal.deliveries as o where o.source_id = s.id order by o.id desc offset p_keep limit 1) as last
        from headrace_internal.sources as s where s.uid in (select source from json_to_recordset(p_deliveries) as d(source uuid))) as old
        where d.source_id = old.id and d.id <= old.last;
end $$;

-- Return the last deliveries to a webhook, the newest first.
-- Granted: all
create or replace function headrace_internal.delivery_page(p_source uuid, p_limit int)
returns table (at timestamptz, accepted boolean, status int, reason text, bytes bigint, key text, seq bigint, remote text)
language sql set enable_seqscan = off set enable_bitmapscan = off as $$
    select d.at, d.accepted, d.status, d.reason, d.bytes, d.key, d.seq, d.remote
    from headrace_internal.deliveries as d
    where d.source_id = (select s.id from headrace_internal.sources as s where s.uid = p_source) order by d.id desc limit p_limit
$$;

-- Record answers of the endpoints of push consumers: [{"consumer", "at", "status", "ms", "error", "messages"}]. Each consumer
-- keeps the last p_keep.
-- Granted: all
create or replace function headrace_internal.record_push_answers(p_answers json, p_keep int) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
begin
    perform set_config('synchronous_commit', 'off', true);
    insert into headrace_internal.push_answers (consumer_id, at, status, ms, error, messages)
        select c.id, a.at, a.status, a.ms, a.error, a.messages
        from rows from (json_to_recordset(p_answers) as (
            consumer int, at timestamptz, status int, ms float8, error text, messages int)) with ordinality
            as a(consumer, at, status, ms, error, messages, place)
        join headrace_internal.consumers as c on c.id = a.consumer
        order by c.id, a.place
        for key share of c skip locked;     -- as above
    delete from headrace_internal.push_answers as a using (
        select c.id, (select o.id from headrace_internal.push_answers as o where o.consumer_id = c.id order by o.id desc offset p_keep limit 1) as last
        from (select distinct consumer from json_to_recordset(p_answers) as a(consumer int)) as c(id)) as old
        where a.consumer_id = old.id and a.id <= old.last;
end $$;

-- Return the last answers of the endpoint of a push consumer, the newest first.
-- Granted: consume
create or replace function headrace_internal.push_answer_page(p_consumer int, p_limit int)
returns table (at timestamptz, status int, ms float8, error text, messages int)
language sql set enable_seqscan = off set enable_bitmapscan = off as $$
    select at, status, ms, error, messages
    from headrace_internal.push_answers where consumer_id = p_consumer order by id desc limit p_limit
$$;
