-- One constraint instead of four on each stream's table, see functions/checks.sql. Tables of streams that exist are
-- converted later, one by one, by the janitor.

-- The value of the setting headrace.checked with which the functions that publish say that they have checked messages.
create table headrace_internal.check_secret (
    secret  text primary key
);
insert into headrace_internal.check_secret values (gen_random_uuid()::text);
