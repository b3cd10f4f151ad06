-- conditions: compile the conditions of consumers, replays and searches from a JSON tree to SQL.
--
--   select headrace_internal.where_condition('{"and": [{"field": "data.status", "op": "=", "value": "paid"},
--                                             {"field": "data.total", "op": ">", "value": 100}]}');
--
-- The tree, and the meaning of each leaf, is described in model/conditions. The SQL reads the columns key, seq,
-- created_at, data and headers. Postgres quotes every literal in it (%L), and all other text in it is fixed.
--
-- A leaf is true or false, never null, and it raises for no stored JSON. That takes care, because `json` accepts
-- values that its operators reject. Half of a surrogate pair raises wherever in the document it is, since names are
-- decoded on the way. So does nesting for which the server's stack had just enough room when the document was
-- written. So does a cast of 1e400000.
--
-- A condition is evaluated for millions of rows of which one in ten thousand is wanted, so the cheap tests come
-- first. In µs per row of 230 bytes, in addition to reading the row (PostgreSQL 18.4, 2 shared cores):
--
--   1.05  data #>> '{status}': the whole document is parsed, wherever the field is. ->> is the same
--   2.3   data::jsonb #>> '{status}'
--   0.2   search the text for a backslash, or else for `\u`. Without one it can't raise, and strings are literal, ...
--   0.3   ... so that a string that does not occur in the text is no field's value, which needs no parsing
--   1.4   a number: parsed once, into the row of a subquery, from which its type and its value are read
--   2.2   the same with two parses, one for the type. 2.0 with one and a regular expression, 1.7 with a plpgsql function
--   2.0   parsed in a function that catches what it raises
--
-- So each test is written twice. The quick version is for a document that was searched for escapes and is short
-- enough not to nest too deeply (a level needs two bytes, and the stack ends after some 14,000 levels). The safe
-- version is for any other. If there is a string to search for, which then saves the parse, searching pays up to
-- 15,000 bytes (20 instead of 45 µs for 12 kB of many small objects, but 20 instead of 7 for 10 kB that are one long
-- string, which is parsed faster than it is searched). Otherwise it pays up to 2,000 bytes, because catching costs no
-- more for longer documents.

-- Convert a JSON number, of any length and size, to a numeric that compares correctly with every number of less than
-- 1,000 digits on either side of the point. numeric itself ends at 131,072 digits before the point and 16,383 after.
create or replace function headrace_internal.json_number(p_text text) returns numeric
language plpgsql immutable strict as $$
declare
    v_part       text[] := regexp_match(p_text, '^(-?)([0-9]+)(?:[.]([0-9]+))?(?:[eE]([-+]?)0*([0-9]+))?$');
    v_digits     text := v_part[2] || coalesce(v_part[3], '');
    v_plain      text := ltrim(v_digits, '0');
    v_magnitude  int;       -- the number is 0.<digits> times ten to this
begin
    if v_plain = '' then
        return 0;
    end if;
    v_magnitude := coalesce(case when length(v_part[5]) > 8 then 100000000 else v_part[5]::int end, 0);
    v_magnitude := length(v_part[2]) - (length(v_digits) - length(v_plain)) + case v_part[4] when '-' then -1 else 1 end * v_magnitude;
    if v_magnitude > 100000 then
        return (v_part[1] || 'Infinity')::numeric;
    elsif v_magnitude < -10000 then
        return (v_part[1] || '1e-10000')::numeric;
    elsif length(v_plain) > 5000 then       -- one more digit represents the digits that are cut off
        v_plain := left(v_plain, 5000) || case when ltrim(substr(v_plain, 5001), '0') = '' then '0' else '1' end;
    end if;
    return (v_part[1] || '0.' || v_plain || 'e' || v_magnitude)::numeric;
end $$;

-- Return the value at the path, for any document. Returns null, as if there were no fields, for a document that
-- Postgres can't decompose.
create or replace function headrace_internal.json_at(p_json json, p_path text[]) returns json
language plpgsql immutable strict as $$
begin
    if p_path = '{}' then
        perform p_json #>> '{}';        -- decodes the whole document
        return btrim(p_json::text, E' \t\n\r')::json;
    end if;
    return p_json #> p_path;
exception when data_exception or program_limit_exceeded then
    return null;
end $$;

-- Return the path of a field, its root first: {data,items,0,"odd key"} for data.items.0."odd key".
create or replace function headrace_internal.where_path(p_field json) returns text[]
language plpgsql immutable as $$
declare
    v_field  text := p_field #>> '{}';
    v_path   text[];
begin
    if json_typeof(p_field) is distinct from 'string' then
        raise exception using errcode = 'HR004', message =
            'A condition''s "field" must be text such as "data.total".';
    elsif v_field in ('key', 'seq', 'created_at') then
        return array[v_field];
    elsif v_field !~ '^(data|headers)(\.("([^"]|"")*"|[^."]+))*$' then
        raise exception using errcode = 'HR004', message = format(
            'A condition can''t be on the field %L: write data.total, data.items.0."odd key", headers.trace, key, seq or created_at.', v_field);
    end if;
    select array_agg(coalesce(replace(step[1], '""', '"'), step[2]) order by place) into v_path
        from regexp_matches(v_field, '\.(?:"((?:[^"]|"")*)"|([^."]+))', 'g') with ordinality as s(step, place);
    return split_part(v_field, '.', 1) || coalesce(v_path, '{}');
end $$;

-- Return a piece of text that any JSON without `\u` must contain if a string in it equals p_text, or is like it. Null
-- if the piece would be too short to search for. p_text is split at wildcards, and at characters that JSON may write
-- in another way.
create or replace function headrace_internal.where_search_text(p_text text) returns text
language sql immutable as $$
    select piece from regexp_split_to_table('"' || regexp_replace(p_text, '["\\/[:cntrl:]%_]', '%', 'g') || '"', '%+') as piece
    where octet_length(piece) >= 2 order by octet_length(piece) desc limit 1
$$;

-- Return a time in ISO 8601 as text with its zone. The zone is UTC if there is none.
create or replace function headrace_internal.where_time(p_text text) returns text
language plpgsql immutable as $$
declare
    v_text  text := p_text;
begin
    if p_text ~ '^\d{4}-\d\d-\d\d$' then
        v_text := p_text || ' 00:00:00+00';
    elsif p_text ~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?$' then
        v_text := p_text || '+00';
    elsif p_text !~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[-+]\d\d(:?\d\d)?)$' then
        raise datetime_field_overflow;
    end if;
    perform v_text::timestamptz;
    return v_text;
exception when data_exception then
    raise exception using errcode = 'HR004', message = format(
        'A condition compares created_at with %L, which is no time: write one such as ''2030-01-31T12:00:00Z''.', p_text);
end $$;

-- Raise unless the value is a valid pattern. A regular expression is tried, which also bounds its size when compiled.
-- Back references are refused: only these make Postgres search by trying all ways to divide a text.
create or replace function headrace_internal.where_check_pattern(p_op text, p_value json) returns void
language plpgsql immutable as $$
declare
    v_pattern  text := p_value #>> '{}';
begin
    if json_typeof(p_value) is distinct from 'string' then
        raise exception using errcode = 'HR004', message = format('The "value" of %L must be a string, the pattern.', p_op);
    elsif length(v_pattern) > 1000 then
        raise exception using errcode = 'HR004', message = format('A pattern of %L is longer than 1,000 characters.', p_op);
    elsif p_op <> 'regex' and v_pattern ~ '(^|[^\\])(\\\\)*\\$' then
        raise exception using errcode = 'HR004', message = format(
            'The pattern %L ends in a backslash that escapes nothing: double it, or leave it out.', v_pattern);
    elsif p_op = 'regex' and v_pattern ~ '(^|[^\\])(\\\\)*\\[1-9]' then
        raise exception using errcode = 'HR004', message = format(
            'The regex %L has a back reference such as \1. These take exponential time: leave it out.', v_pattern);
    elsif p_op = 'regex' then
        perform '' collate "C" ~ v_pattern;
    end if;
exception when invalid_regular_expression then
    raise exception using errcode = 'HR004', message = format(
        'The regex %L can''t be used (%s): it must be a regular expression of PostgreSQL''s.', v_pattern, sqlerrm);
end $$;

create type headrace_internal.where_sql as (
    sql      text,
    cost     int,       -- tests with a lower cost come first
    roots    text[],    -- which of data and headers it reads
    searches  boolean    -- whether it searches the text of a document for a string before it parses
);

create type headrace_internal.where_values as (
    kinds     text[],   -- the JSON types of the values
    texts     text[],   -- the strings among them, null if there is none ...
    numbers   text[],   -- ... the numbers ...
    booleans  text[]    -- ... and true and false
);

-- Check that the operator and the value of a leaf fit together and fit its field, and return the values by their kind.
-- p_root: data, headers or a column.
create or replace function headrace_internal.where_values(p_op text, p_value json, p_root text) returns headrace_internal.where_values
language plpgsql immutable as $$
declare
    v_values  json[] := array[p_value];
    v_result  headrace_internal.where_values;
begin
    if p_op is null or p_op not in ('=', '!=', '<', '<=', '>', '>=', 'in', 'not in', 'is null', 'is not null', 'like', 'ilike', 'regex') then
        raise exception using errcode = 'HR004', message = format(
            'A condition has the operator %L: write =, !=, <, <=, >, >=, in, not in, is null, is not null, like, ilike or regex.', p_op);
    end if;
    if p_op in ('is null', 'is not null') then
        if p_value is not null then
            raise exception using errcode = 'HR004', message = format('%L takes no "value": leave it out.', p_op);
        elsif p_root not in ('data', 'headers') then
            raise exception using errcode = 'HR004', message = format('%s is never null: leave the condition out.', p_root);
        end if;
        v_values := null;
    elsif p_op in ('like', 'ilike', 'regex') then
        perform headrace_internal.where_check_pattern(p_op, p_value);
    elsif p_op in ('in', 'not in') then
        if json_typeof(p_value) is distinct from 'array' or json_array_length(p_value) not between 1 and 1000 then
            raise exception using errcode = 'HR004', message = format('The "value" of %L must be a list of 1 to 1,000 values.', p_op);
        end if;
        select array_agg(value order by place) into v_values from json_array_elements(p_value) with ordinality as v(value, place);
    end if;
    select array_agg(distinct coalesce(json_typeof(value), 'null')),
           array_agg(value #>> '{}') filter (where json_typeof(value) = 'string'),
           array_agg(value #>> '{}') filter (where json_typeof(value) = 'number'),
           array_agg(value #>> '{}') filter (where json_typeof(value) = 'boolean')
        into v_result from unnest(v_values) as value;
    if not v_result.kinds <@ array['string', 'number', 'boolean'] then
        raise exception using errcode = 'HR004', message = format(
            'The "value" of %L must be a string, a number, true or false; for null, write "is null" or "is not null".', p_op);
    elsif v_result.booleans is not null and p_op not in ('=', '!=', 'in', 'not in') then
        raise exception using errcode = 'HR004', message = format('true and false have no order for %L: write = or !=.', p_op);
    elsif p_root not in ('data', 'headers') and v_result.kinds <> array[case p_root when 'seq' then 'number' else 'string' end]
          or p_root in ('seq', 'created_at') and p_op in ('like', 'ilike', 'regex') then
        raise exception using errcode = 'HR004', message = format('%s compares with %s only, by =, !=, <, <=, >, >=, in and not in%s.', p_root,
            case p_root when 'seq' then 'numbers' when 'key' then 'strings' else 'times as strings' end,
            case p_root when 'key' then ', like, ilike and regex' else '' end);
    elsif exists (select from unnest(v_result.numbers) as n where length(n) > 500 or n ~ '[eE][-+]?0*[1-9][0-9]{3}') then
        raise exception using errcode = 'HR004', message = 'A number of a condition must have at most 400 digits and a power of ten from -400 to 400.';
    end if;
    return v_result;
end $$;

-- Compile a leaf on a column.
create or replace function headrace_internal.where_column(p_op text, p_column text, p_values headrace_internal.where_values) returns headrace_internal.where_sql
language plpgsql immutable as $$
declare
    v_operator  text := case p_op when 'regex' then '~' when 'in' then '= any' when 'not in' then '<> all' else p_op end;
    v_type      text := 'text';
    v_texts     text[] := coalesce(p_values.texts, p_values.numbers);
    v_result    headrace_internal.where_sql;
begin
    if p_column = 'seq' then
        v_type := case when exists (select from unnest(p_values.numbers) as n where n !~ '^-?[0-9]{1,18}$') then 'numeric' else 'bigint' end;
    elsif p_column = 'created_at' then
        v_type := 'timestamptz';
        select array_agg(headrace_internal.where_time(value) order by place) into v_texts from unnest(v_texts) with ordinality as t(value, place);
    end if;
    v_result.sql := case when p_column = 'key' then 'key collate "C"' else p_column end || ' ' || v_operator
        || case when p_op in ('in', 'not in') then format(' (%L::%s[])', v_texts, v_type) else format(' %L::%s', v_texts[1], v_type) end;
    v_result.cost := case when p_op in ('like', 'ilike', 'regex') then 3 else 1 end;
    v_result.roots := '{}';
    return v_result;
end $$;

-- Return a test over j, a value as JSON.
create or replace function headrace_internal.where_json_test(p_op text, p_values headrace_internal.where_values) returns text
language plpgsql immutable as $$
declare
    c_number  constant text := 'case when octet_length(j::text) < 40 and strpos(j::text, ''e'') = 0 and strpos(j::text, ''E'') = 0 '
                               'then j::text::numeric else headrace_internal.json_number(j::text) end';
    c_string  constant text := '(j #>> ''{}'') collate "C"';
    v_test    text;
begin
    if p_op in ('=', '!=', 'in', 'not in') then
        v_test := concat_ws(' or ',
            case when p_values.texts is not null
                 then format('json_typeof(j) = ''string'' and %s = any (%L::text[])', c_string, p_values.texts) end,
            case when p_values.numbers is not null
                 then format('case when json_typeof(j) = ''number'' then %s = any (%L::numeric[]) else false end', c_number, p_values.numbers) end,
            case when p_values.booleans is not null
                 then format('j::text = any (%L::text[])', p_values.booleans) end);
        return case when p_op in ('!=', 'not in') then format('json_typeof(j) <> ''null'' and not (%s)', v_test) else v_test end;
    elsif p_values.numbers is not null then
        return format('case when json_typeof(j) = ''number'' then %s %s %L::numeric else false end', c_number, p_op, p_values.numbers[1]);
    end if;
    return format('json_typeof(j) = ''string'' and %s %s %L', c_string, p_op, p_values.texts[1]);
end $$;

-- Compile a leaf on a document. p_safe: see headrace_internal.where_leaf.
create or replace function headrace_internal.where_document(p_op text, p_path text[], p_values headrace_internal.where_values, p_safe boolean) returns headrace_internal.where_sql
language plpgsql immutable as $$
declare
    v_root       text := p_path[1];
    v_texts      text[] := p_values.texts;
    v_field      text;      -- the field's value as JSON ...
    v_text       text;      -- ... and as text
    -- whether a string of the values reads like JSON of another kind
    v_ambiguous  boolean := exists (select from unnest(v_texts) as t where t ~ '^[-0-9[{]' or t in ('true', 'false'));
    v_test       text;
    v_searched   text[] := '{}';    -- texts of which the document must contain one
    v_result     headrace_internal.where_sql;
begin
    if p_safe then
        v_field := format('headrace_internal.json_at(%s, %L)', v_root, p_path[2:]);
        v_text := format('(%s #>> ''{}'') collate "C"', v_field);
    else
        -- The document as a whole keeps the white space before it, so it is trimmed.
        v_field := case when cardinality(p_path) = 1 then format(E'btrim(%s::text, E'' \\t\\n\\r'')::json', v_root)
                        else format('(%s #> %L)', v_root, p_path[2:]) end;
        v_text := format('(%s #>> %L) collate "C"', v_root, p_path[2:]);
    end if;
    v_result.roots := array[v_root];
    v_result.cost := 20;

    if p_op in ('is null', 'is not null') then
        v_result.sql := format('(%s) %s', v_text, p_op);
    elsif p_op in ('=', 'in') and p_values.kinds = array['string'] then
        v_test := case when v_ambiguous then format(' and json_typeof(%s) = ''string''', v_field) else '' end;
        v_result.sql := case when p_op = '=' then format('coalesce(%s = %L%s, false)', v_text, v_texts[1], v_test)
                             else format('coalesce(%s = any (%L::text[])%s, false)', v_text, v_texts, v_test) end;
        v_searched := array(select headrace_internal.where_search_text(value) from unnest(v_texts) as value);
    elsif p_op in ('!=', 'not in') and p_values.kinds = array['string'] and not v_ambiguous then
        v_result.sql := format('coalesce(%s <> all (%L::text[]), false)', v_text, v_texts);
    elsif p_op in ('like', 'ilike', 'regex') then
        v_result.sql := format('coalesce(%s %s %L and json_typeof(%s) = ''string'', false)', v_text,
                               case p_op when 'regex' then '~' else p_op end, v_texts[1], v_field);
        if p_op = 'like' then
            v_searched := array[headrace_internal.where_search_text(v_texts[1])];
        end if;
        v_result.cost := 30;
    else
        -- "offset 0" prevents the planner from inlining the parse at each use of j.
        v_result.sql := format('(select coalesce(%s, false) from (select %s as j offset 0) as x)',
                               headrace_internal.where_json_test(p_op, p_values), v_field);
        v_result.cost := 25;
    end if;

    -- Where the document may be one that raises, it may also spell the string in other ways.
    v_result.searches := not p_safe and cardinality(v_searched) between 1 and 3 and array_position(v_searched, null) is null;
    if v_result.searches then
        select format('(%s) and %s', string_agg(format('strpos(%s::text, %L) > 0', v_root, searched), ' or ' order by place), v_result.sql)
            into v_result.sql from unnest(v_searched) with ordinality as s(searched, place);
        v_result.cost := 10 * cardinality(v_searched);
    end if;
    return v_result;
end $$;

-- Compile one leaf.
-- p_safe: whether the document may be one that raises
create or replace function headrace_internal.where_leaf(p_leaf json, p_safe boolean) returns headrace_internal.where_sql
language plpgsql immutable as $$
declare
    v_op      text := p_leaf ->> 'op';
    v_path    text[] := headrace_internal.where_path(p_leaf -> 'field');
    v_values  headrace_internal.where_values := headrace_internal.where_values(v_op, p_leaf -> 'value', v_path[1]);
begin
    if v_path[1] in ('data', 'headers') then
        return headrace_internal.where_document(v_op, v_path, v_values, p_safe);
    end if;
    return headrace_internal.where_column(v_op, v_path[1], v_values);
end $$;

-- Join conditions by "and" or "or", the cheapest first. None of the parts can raise, so they may come in any order.
create or replace function headrace_internal.where_join(p_parts headrace_internal.where_sql[], p_word text) returns headrace_internal.where_sql
language sql immutable as $$
    select string_agg(format('(%s)', part.sql), format(' %s ', p_word) order by part.cost, place), sum(part.cost)::int,
           array(select distinct root from unnest(p_parts) as p, unnest(p.roots) as root order by root), bool_or(searches)
    from unnest(p_parts) with ordinality as part(sql, cost, roots, searches, place)
$$;

-- Compile a tree of leaves.
create or replace function headrace_internal.where_tree(p_where json, p_safe boolean, p_depth int) returns headrace_internal.where_sql
language plpgsql immutable as $$
declare
    v_names   text[];
    v_word    text;
    v_child   json;
    v_parts   headrace_internal.where_sql[] := '{}';
    v_result  headrace_internal.where_sql;
begin
    if p_depth > 40 then
        raise exception using errcode = 'HR004', message = 'A condition is nested more than 40 deep: flatten it.';
    elsif json_typeof(p_where) = 'object' then
        v_names := array(select json_object_keys(p_where) order by 1);
    end if;
    if v_names in (array['field', 'op'], array['field', 'op', 'value']) then
        return headrace_internal.where_leaf(p_where, p_safe);
    elsif v_names = array['not'] then
        v_result := headrace_internal.where_tree(p_where -> 'not', p_safe, p_depth + 1);
        v_result.sql := format('not (%s)', v_result.sql);
        return v_result;
    elsif v_names is null or v_names not in (array['and'], array['or']) then
        raise exception using errcode = 'HR004', message = format(
            'A condition must be {"field": …, "op": …, "value": …}, {"and": […]}, {"or": […]} or {"not": …}, not %s.', left(p_where::text, 80));
    end if;
    v_word := v_names[1];
    if json_typeof(p_where -> v_word) <> 'array' or json_array_length(p_where -> v_word) = 0 then
        raise exception using errcode = 'HR004', message = format('%L of a condition must be a list of at least one condition.', v_word);
    end if;
    for v_child in select value from json_array_elements(p_where -> v_word) as value loop
        v_parts := v_parts || headrace_internal.where_tree(v_child, p_safe, p_depth + 1);
    end loop;
    return headrace_internal.where_join(v_parts, v_word);
end $$;

-- Return the condition as SQL, in parentheses, or 'true' if there is none. Raises HR004, with what would be right.
create or replace function headrace_internal.where_condition(p_where json) returns text
language plpgsql immutable as $$
declare
    v_child    json;
    v_part     headrace_internal.where_sql;
    v_columns  headrace_internal.where_sql[] := '{}';    -- parts that read no document
    v_quick    headrace_internal.where_sql[] := '{}';
    v_safe     headrace_internal.where_sql[] := '{}';
    v_guards   text;
begin
    if p_where is null or json_typeof(p_where) = 'null' then
        return 'true';
    elsif octet_length(p_where::text) > 200000 then
        raise exception using errcode = 'HR004', message = 'A condition is longer than 200,000 bytes: split it, or shorten its lists.';
    end if;
    perform headrace_internal.where_tree(p_where, false, 1);     -- raises if it is not a condition
    -- Parts of an "and" are compiled separately. After one part is false the others need not be evaluated, and tests
    -- of the columns are the cheapest.
    for v_child in select value from json_array_elements(coalesce(p_where -> 'and', json_build_array(p_where))) as value loop
        v_part := headrace_internal.where_tree(v_child, false, 1);
        if v_part.roots = '{}' then
            v_columns := v_columns || v_part;
        else
            v_quick := v_quick || v_part;
            v_safe := v_safe || headrace_internal.where_tree(v_child, true, 1);
        end if;
    end loop;
    v_part := headrace_internal.where_join(v_quick, 'and');
    select string_agg(format(E'coalesce(octet_length(%1$s::text) < %2$s and (strpos(%1$s::text, E''\\\\'') = 0'
                              ' or strpos(%1$s::text, E''\\\\u'') = 0), true)', root, case when v_part.searches then 15000 else 2000 end),
                      ' and ')
        into v_guards from unnest(v_part.roots) as root;
    return '(' || concat_ws(' and ', (headrace_internal.where_join(v_columns, 'and')).sql,
        case when v_guards is not null
             then format('case when %s then %s else %s end', v_guards, v_part.sql, (headrace_internal.where_join(v_safe, 'and')).sql) end) || ')';
exception when data_exception then
    -- The tree itself contains something that JSON allows and Postgres can't represent as text.
    raise exception using errcode = 'HR004', message = format('A condition can''t be read as JSON by Postgres: %s.', sqlerrm);
end $$;
