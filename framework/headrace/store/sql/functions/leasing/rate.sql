-- rate: limit the messages a second of a consumer, over all its workers. The token bucket is part of its cursor, and
-- the lease call updates it, since these calls take turns anyway. No call waits here. If the bucket is empty, the
-- call returns when to call again.

create type headrace_internal.token_bucket as (
    tokens   float8,        -- the tokens in it now
    granted  int,           -- how many messages may be delivered
    short    boolean        -- whether that is less than were wanted
);

-- Return the tokens available. p_wanted: how many messages there is room for. The time of the cursor may be slightly later
-- than p_now, if another call was made in between.
create or replace function headrace_internal.grant_tokens(
    p_consumer headrace_internal.consumers, p_cursor headrace_internal.cursors, p_wanted int, p_now timestamptz
) returns headrace_internal.token_bucket
language plpgsql immutable as $$
declare
    c_grain   constant float8 := 1e-9;      -- tolerance for the rounding of added fractions
    v_burst   float8 := coalesce(p_consumer.rate_burst, greatest(1, ceil(p_consumer.rate_limit)));
    v_bucket  headrace_internal.token_bucket;
begin
    v_bucket.tokens := least(v_burst, coalesce(
        p_cursor.tokens + extract(epoch from p_now - p_cursor.tokens_at)::float8 * p_consumer.rate_limit, v_burst));
    v_bucket.granted := greatest(least(p_wanted, floor(v_bucket.tokens + c_grain)), 0);
    v_bucket.short := v_bucket.granted < p_wanted;
    return v_bucket;
end $$;

-- Return the seconds until there is a whole token again, if there is none now. Rounded up to the next microsecond, so
-- that the token is there then.
create or replace function headrace_internal.seconds_until_token(p_consumer headrace_internal.consumers, p_tokens float8) returns float8
language sql immutable as $$
    select ceil(1e6 * greatest(0, 1 - p_tokens) / p_consumer.rate_limit) / 1e6
$$;
