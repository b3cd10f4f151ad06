-- What users call. The owner of the schema, its members and superusers call headrace_internal, with their own rights, and
-- so do roles that were given rights there by hand. Other roles call headrace_granted, see grants.sql. These functions
-- name no type of headrace_internal, which such a role could not look up.

-- Whether the caller may call headrace_granted only. False for a role that was given rights on headrace_internal by hand.
-- Each function below asks for the owner's rights first, so that the owner saves this call. p_command: the rest of the
-- command that gives the grant.
create or replace function headrace.needs_grant(p_command text) returns boolean
language plpgsql stable as $$
begin
    if not has_schema_privilege('headrace_internal', 'usage') then
        if has_schema_privilege('headrace_granted', 'usage') then
            return true;
        end if;
        raise exception using errcode = 'insufficient_privilege', message = format(
            'The role %I has no grant. A member of the owner can give it one: headrace grant ' || p_command, current_user, current_user);
    end if;
    return exists (
        select from pg_proc as p join pg_namespace as n on n.oid = p.pronamespace
        where n.nspname = 'headrace_granted' and p.proname = 'lease'
          and has_function_privilege(p.oid, 'execute'));
end $$;

-- Publish messages with options, one or many, see publish.sql.
create or replace function headrace.publish_with_options(
    p_stream text, p_keys text[], p_data json[], p_headers json[], p_options json, out published bigint, out seq bigint
) returns record
language plpgsql as $$
begin
    if pg_catalog.has_schema_privilege('headrace_internal', 'create') or not headrace.needs_grant('publish %I --stream NAME') then
        select o.published, o.seq into published, seq from headrace_internal.publish_with_options(p_stream, p_keys, p_data, p_headers, p_options) as o;
    else
        select o.published, o.seq into published, seq from headrace_granted.publish_with_options(p_stream, p_keys, p_data, p_headers, p_options) as o;
    end if;
end $$;

-- Publish many messages.
create or replace function headrace.publish_many(
    p_stream       text,
    p_keys         text[],
    p_data         json[],
    p_headers      json[] default null,
    p_message_ids  text[] default null,
    p_deliver_at   timestamptz[] default null
) returns bigint
language plpgsql as $$
begin
    if p_message_ids is not null or p_deliver_at is not null then
        return (headrace.publish_with_options(
            p_stream, p_keys, p_data, p_headers,
            (select json_agg(json_build_object('message_id', o.id, 'deliver_at', o.due)) from unnest(p_message_ids, p_deliver_at) as o(id, due)))).published;
    elsif pg_catalog.has_schema_privilege('headrace_internal', 'create') or not headrace.needs_grant('publish %I --stream NAME') then
        return headrace_internal.publish_messages(p_stream, p_keys, p_data, p_headers);
    end if;
    return headrace_granted.publish_messages(p_stream, p_keys, p_data, p_headers);
end $$;

-- Publish one message.
create or replace function headrace.publish(
    p_stream      text,
    p_key         text,
    p_data        json,
    p_headers     json default null,
    p_message_id  text default null,
    p_deliver_at  timestamptz default null
) returns bigint
language plpgsql as $$
begin
    if p_message_id is not null or p_deliver_at is not null then
        return (headrace.publish_with_options(
            p_stream, array[p_key], array[p_data], array[p_headers],
            json_build_object('message_id', p_message_id, 'deliver_at', p_deliver_at))).seq;
    elsif pg_catalog.has_schema_privilege('headrace_internal', 'create') or not headrace.needs_grant('publish %I --stream NAME') then
        return headrace_internal.publish_message(p_stream, p_key, p_data, p_headers);
    end if;
    return headrace_granted.publish_message(p_stream, p_key, p_data, p_headers);
end $$;

-- Publish one message unless one with its unique key is pending, see unique.sql.
create or replace function headrace.publish_unique(
    p_stream        text,
    p_key           text,
    p_data          json,
    p_unique_key    text,
    p_headers       json default null,
    p_deliver_at    timestamptz default null,
    p_unique_while  text default 'pending'
) returns bigint
language plpgsql as $$
begin
    return (headrace.publish_with_options(
        p_stream, array[p_key], array[p_data], array[p_headers],
        json_build_object('unique_key', p_unique_key, 'deliver_at', p_deliver_at, 'unique_while', p_unique_while))).seq;
end $$;

-- Publish many messages unless messages with their unique keys are pending, see unique.sql.
create or replace function headrace.publish_unique_many(
    p_stream        text,
    p_keys          text[],
    p_data          json[],
    p_unique_keys   text[],
    p_headers       json[] default null,
    p_deliver_at    timestamptz[] default null,
    p_unique_while  text default 'pending'
) returns bigint
language plpgsql as $$
begin
    return (headrace.publish_with_options(
        p_stream, p_keys, p_data, p_headers,
        (select json_agg(json_build_object('unique_key', o.unique_key, 'deliver_at', o.due, 'unique_while', p_unique_while))
         from unnest(p_unique_keys, p_deliver_at) as o(unique_key, due)))).published;
end $$;

-- Ack messages in the transaction of the caller, see transactions.sql.
create or replace function headrace.ack(
    p_consumer int, p_leases bigint[], p_seqs bigint[], p_now timestamptz default clock_timestamp(), p_timeline uuid default null,
    p_process text default null, p_seconds real default null
) returns xid8
language plpgsql as $$
begin
    if pg_catalog.has_schema_privilege('headrace_internal', 'create') or not headrace.needs_grant('consume %I --stream NAME') then
        return headrace_internal.ack_messages(p_consumer, p_leases, p_seqs, p_now, p_timeline, p_process, p_seconds);
    end if;
    return headrace_granted.ack_messages(p_consumer, p_leases, p_seqs, p_now, p_timeline, p_process, p_seconds);
end $$;

-- Create a stream, see streams.sql. Returns its id.
create or replace function headrace.create_stream(p_name text, p_settings json default '{}') returns int
language plpgsql as $$
begin
    if pg_catalog.has_schema_privilege('headrace_internal', 'create') or not headrace.needs_grant('admin %I') then
        return headrace_internal.stream_for(p_name, p_settings);
    end if;
    return headrace_granted.stream_for(p_name, p_settings);
end $$;
