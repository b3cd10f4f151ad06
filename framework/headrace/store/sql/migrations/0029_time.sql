-- Retries remember their delay, so that they don't wait longer if the server's clock is set back.
-- Locks: headrace_internal.parked (access exclusive)
alter table headrace_internal.parked add column delay float8;      -- seconds. Null for a message that is due at once
