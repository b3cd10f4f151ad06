-- rate: a consumer keeps to so many messages a second, over all its workers. The token bucket lies in its cursor, and is reckoned
-- with in the lease call, where its calls take turns anyway. Nobody waits in here: who finds it empty is told when to come again.

create type headrace.bucket as (
    tokens   float8,        -- what is in it now
    granted  int,           -- how many messages may be handed out
    short    boolean        -- whether that is less than were wanted
);

-- p_wanted: how many messages there is room for. A clock that was set back fills nothing, and takes nothing away.
create function headrace.allow(
    p_consumer headrace.consumers, p_cursor headrace.cursors, p_wanted int, p_now timestamptz
) returns headrace.bucket
language plpgsql immutable as $$
declare
    c_grain   constant float8 := 1e-9;      -- what adding fractions may have lost of a whole one
    v_burst   float8 := coalesce(p_consumer.rate_burst, greatest(1, ceil(p_consumer.rate_limit)));
    v_bucket  headrace.bucket;
begin
    v_bucket.tokens := least(v_burst, coalesce(
        p_cursor.tokens + greatest(0, extract(epoch from p_now - p_cursor.tokens_at)::float8) * p_consumer.rate_limit, v_burst));
    v_bucket.granted := least(p_wanted, floor(v_bucket.tokens + c_grain));
    v_bucket.short := v_bucket.granted < p_wanted;
    return v_bucket;
end $$;

-- Seconds until there is a whole one again, which there is not now: up to the next microsecond, so that it is there then.
create function headrace.refill(p_consumer headrace.consumers, p_tokens float8) returns float8
language sql immutable as $$
    select ceil(1e6 * greatest(0, 1 - p_tokens) / p_consumer.rate_limit) / 1e6
$$;
