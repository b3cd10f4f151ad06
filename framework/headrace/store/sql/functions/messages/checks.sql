-- checks: what a message must be. The table of each stream has one constraint, valid_message, which calls
-- headrace_streams.is_message for each row.
--
-- Postgres parses the text of a constraint for each INSERT statement. That took a third of the time of publishing one
-- message when the rules were constraints themselves, so the text is short, and the rules are in functions.
--
-- Messages that are published together are checked together, by headrace_internal.check_together, and then their rows are
-- not checked one by one. The constraint calls headrace_streams.are_checked for that, once for each statement, because
-- the planner evaluates an immutable function without arguments. It returns true only if the setting headrace.checked
-- has the secret of headrace_internal.check_secret and the current role may create objects in headrace_internal, as the
-- owner of the schema and its members may. The functions that publish set the secret after the check, and take it back
-- after the INSERT. An error takes it back, too, since a setting of a transaction ends with its savepoint. Roles with a grant can't read it, and a role that was given rights by hand does not
-- pass the second test. All other statements have each row checked: INSERT, COPY and a restore.

-- Raise unless it is a message. The error has the rule as its constraint, see store/database/errors.py. Rules are tested
-- in the alphabetical order of their names, as Postgres tests constraints.
--
-- The key's grammar, as in NATS: tokens separated by dots, none empty, none exactly "*" or ">", and no blanks or control
-- characters. It is one expression, because one pass over the key is cheaper than several tests.
-- An escaped NUL is valid JSON, but Postgres could never return the string that contains it.
-- A lease call could not return a message larger than 200 MB, because a value has at most 1 GB and is copied on the way.
--
-- The caller's search_path may contain anything, and a SET clause would cost a microsecond per row, so each function,
-- operator and type is qualified. The function is in the schema of the streams, so that a dump of that schema has it.
create or replace function headrace_streams.is_message(p_key text, p_data json, p_headers json) returns boolean
language plpgsql immutable parallel safe as $$
declare
    v_rule  pg_catalog.text;
begin
    -- Mostly all rules are kept. Each transaction prepares the expressions that it evaluates, so this one is shorter than
    -- those below.
    if p_headers is null and pg_catalog.pg_column_size(p_data) operator(pg_catalog.<=) 700000
       and pg_catalog.strpos(p_data::pg_catalog.text, E'\\u0000') operator(pg_catalog.=) 0
       and pg_catalog.octet_length(p_key) operator(pg_catalog.<=) 1024
       and p_key collate pg_catalog."C" operator(pg_catalog.!~)
            E'(^|\\.)[*>]?(\\.|$)|[\\u0001-\\u0020\\u007F-\\u00A0\\u1680\\u2000-\\u200A\\u2028\\u2029\\u202F\\u205F\\u3000]'
    then
        return true;
    end if;
    v_rule := case
        when p_headers is not null and pg_catalog.json_typeof(p_headers) operator(pg_catalog.<>) 'object'
            then 'headers_are_objects'
        when pg_catalog.pg_column_size(p_data) operator(pg_catalog.+) coalesce(pg_catalog.pg_column_size(p_headers), 0)
                operator(pg_catalog.>) 700000   -- however well it is compressed
             and pg_catalog.octet_length(p_data::pg_catalog.text)
                operator(pg_catalog.+) coalesce(pg_catalog.octet_length(p_headers::pg_catalog.text), 0) operator(pg_catalog.>) 200000000
            then 'message_size'
        when pg_catalog.strpos(p_data::pg_catalog.text, E'\\u0000') operator(pg_catalog.>) 0
             and p_data::pg_catalog.text operator(pg_catalog.~) E'(^|[^\\\\])(\\\\\\\\)*\\\\u0000'
            then 'no_nul'
        when pg_catalog.octet_length(p_key) operator(pg_catalog.>) 1024
             or p_key collate pg_catalog."C" operator(pg_catalog.~)
                E'(^|\\.)[*>]?(\\.|$)|[\\u0001-\\u0020\\u007F-\\u00A0\\u1680\\u2000-\\u200A\\u2028\\u2029\\u202F\\u205F\\u3000]'
            then 'valid_key' end;
    if v_rule is null then
        return true;
    end if;
    raise exception using errcode = '23514', schema = 'headrace_streams', constraint = v_rule,
        message = pg_catalog.format('new message of a stream violates check constraint "%s"', v_rule),
        detail = pg_catalog.format('The key is %L.', pg_catalog.left(p_key, 80));
end $$;

-- Whether the rows of this statement were checked together. It is called immutable so that the planner calls it once for
-- each statement, and has no arguments for the same reason.
create or replace function headrace_streams.are_checked() returns boolean
language plpgsql immutable parallel safe as $$
begin
    if coalesce(pg_catalog.current_setting('headrace.checked', true), '') operator(pg_catalog.=) '' then
        return false;
    elsif not pg_catalog.has_schema_privilege('headrace_internal', 'create') then
        return false;
    end if;
    return exists (select from headrace_internal.check_secret as s
                   where s.secret operator(pg_catalog.=) pg_catalog.current_setting('headrace.checked', true));
end $$;

-- They open nothing, and a role that may insert into a table must be able to call what its constraint calls.
grant execute on function headrace_streams.is_message, headrace_streams.are_checked to public;

-- Check messages that the next statement of the calling function inserts, all but two rules, and return whether all of
-- them pass. Then that statement must check the two rules: the length of each key, and that the data has no NUL. And after
-- it the caller calls headrace_internal.end_checked. If any may be invalid, or the caller is not a member of the owner,
-- nothing is set, and the constraint checks each row.
--
-- Keys that are joined by a dot have the tokens that they have alone. JSON has no control characters, so one separates
-- the headers. The size of both arrays bounds that of each message, since arrays have their elements uncompressed. A few
-- messages are checked row by row, which is cheaper up to some 7 of them.
create or replace function headrace_internal.begin_checked(p_keys text[], p_data json[], p_headers json[]) returns boolean
language plpgsql as $$
begin
    if cardinality(p_keys) < 8 or pg_column_size(p_data) > 4000000 or pg_column_size(p_headers) > 4000000
       or not has_schema_privilege('headrace_internal', 'create')
    then
        return false;
    elsif array_to_string(p_keys, '.') collate "C"
            ~ E'(^|\\.)[*>]?(\\.|$)|[\\u0001-\\u0020\\u007F-\\u00A0\\u1680\\u2000-\\u200A\\u2028\\u2029\\u202F\\u205F\\u3000]'
          or array_to_string(p_headers, E'\u0001') ~ E'(^|\u0001)[^{]'
    then
        return false;
    end if;
    return headrace_internal.begin_trusted(pg_column_size(p_data));
end $$;

-- Check messages as headrace_internal.begin_checked does, and the other two rules as well, which is cheaper than row by row
-- from some 16 of them on.
create or replace function headrace_internal.check_together(p_keys text[], p_data json[], p_headers json[]) returns boolean
language plpgsql as $$
begin
    return cardinality(p_keys) >= 16
       and (select max(octet_length(key)) <= 1024 and max(strpos(data::text, E'\\u0000')) = 0
            from (select unnest(p_keys) as key, unnest(p_data) as data) as m)
       and headrace_internal.begin_checked(p_keys, p_data, p_headers);
end $$;

-- Let the next statement of the calling function insert messages without a check. The caller has kept all rules but the
-- one for the size, or calls with the rights of the owner at its own risk. Returns false, and lets nothing pass, if they may
-- be too large. After the statement the caller calls headrace_internal.end_checked.
-- p_bytes: the size of all of them together, which bounds that of each.
create or replace function headrace_internal.begin_trusted(p_bytes int) returns boolean
language plpgsql as $$
declare
    v_set  text;
begin
    if p_bytes > 200000000 then
        return false;
    end if;
    select set_config('headrace.checked', secret, true) into v_set from headrace_internal.check_secret;
    return v_set is not null;
end $$;

-- From here on each row is checked again. The function is inlined where it is called.
create or replace function headrace_internal.end_checked() returns boolean
language sql volatile as $$
    select set_config('headrace.checked', '', true) <> ''
$$;

-- Let the rows of a staging table pass, which has the constraint of the stream.
create or replace function headrace_internal.trust_staging() returns void
language plpgsql as $$
begin
    if has_schema_privilege('headrace_internal', 'create') then
        perform headrace_internal.begin_trusted(0);
    end if;
end $$;

-- The text of the constraint valid_message.
create or replace function headrace_internal.check_of_messages() returns text
language sql immutable as $$
    select 'headrace_streams.are_checked() or headrace_streams.is_message(key, data, headers)'
$$;

-- Return whether a value of a caller is a JSON object with these fields, which everything that reads it can read: jsonb
-- takes neither a NUL character nor half a surrogate pair. json takes both, and every read of such a text raises.
create or replace function headrace_internal.has_fields(p_value json, p_fields text[]) returns boolean
language plpgsql stable as $$
begin
    return coalesce(jsonb_typeof(p_value::jsonb) = 'object' and p_value::jsonb ?& p_fields, false);
exception when data_exception or program_limit_exceeded then
    return false;
end $$;
