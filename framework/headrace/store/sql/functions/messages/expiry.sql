-- expiry: messages with a time to live.
--
-- The header `headrace-expires-in` has the time to live in seconds, as a number or as text. It counts from the
-- message's created_at, which is the server's time of its publication, so a scheduled message lives from the moment
-- that it is published, and no other clock takes part.
--
-- An expired message stays in its stream until retention removes it, and is delivered no more. A lease call passes it
-- by, as if it did not match the consumer's filter. Messages without the header cost one search of the headers of a
-- batch, and nothing if none has headers.

-- Whether any of these headers may have a time to live. It is inlined where it is called, so it is no function call.
create or replace function headrace_internal.may_expire(p_headers json[]) returns boolean
language sql stable as $$
    select strpos(array_to_string(p_headers, ''), '"headrace-expires-in"') > 0
$$;

-- Return when a message expires. Null if it has no time to live, or one that can't be read: more than 0 and at most
-- 3,153,600,000 seconds, a hundred years. It raises for no stored JSON, since a message must never stop a consumer.
create or replace function headrace_internal.expires_at(p_headers json, p_created_at timestamptz) returns timestamptz
language sql stable as $$
    select p_created_at + make_interval(secs => nullif(
               case when t.seconds ~ '^[0-9]{1,10}([.][0-9]{1,9})?$' and t.seconds::numeric <= 3153600000 then t.seconds::float8 end, 0))
    from (select btrim(headrace_internal.json_at(p_headers, '{headrace-expires-in}')::text, '"') as seconds
          where strpos(p_headers::text, '"headrace-expires-in"') > 0) as t
$$;

-- The search comes first, because it suffices for nearly all messages and is inlined. Without headers it is false, and not
-- null, so that nothing else is called.
create or replace function headrace_internal.is_expired(p_headers json, p_created_at timestamptz, p_now timestamptz) returns boolean
language sql stable as $$
    select coalesce(strpos(p_headers::text, '"headrace-expires-in"'), 0) > 0
           and coalesce(headrace_internal.expires_at(p_headers, p_created_at) <= p_now, false)
$$;

-- Return a time as an expression. Its text stands for another time in some sessions, since it may end in an abbreviation
-- that several zones have.
create or replace function headrace_internal.quoted_time(p_time timestamptz) returns text
language sql stable as $$
    select format('to_timestamp(%L)', extract(epoch from p_time))
$$;

-- Return a condition over the columns of a message, with one more: the message has not expired.
create or replace function headrace_internal.unexpired(p_condition text, p_now timestamptz) returns text
language sql stable as $$
    select format('(%s) and not headrace_internal.is_expired(headers, created_at, %s)', p_condition, headrace_internal.quoted_time(p_now))
$$;

-- Raise if a time to live can't be read. For publishers, since it would be ignored.
create or replace function headrace_internal.check_expiry(p_headers json[]) returns void
language plpgsql as $$
declare
    v_given  text;
begin
    select g.given::text into v_given
        from unnest(p_headers) as h(headers)
        cross join lateral (select headrace_internal.json_at(h.headers, '{headrace-expires-in}') as given) as g
        where g.given is not null and headrace_internal.expires_at(h.headers, clock_timestamp()) is null limit 1;
    if found then
        raise exception using errcode = 'HR004', column = 'headers', message = format(
            'The header "headrace-expires-in" is %s: give the time to live in seconds, more than 0 and at most 3153600000, such as 60 or 0.5.',
            left(v_given, 40));
    end if;
end $$;
