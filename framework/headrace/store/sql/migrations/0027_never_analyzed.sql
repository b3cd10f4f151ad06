-- Autovacuum does not analyze the tables that calls write all the time. From PostgreSQL 17 on it sleeps between the pages of its
-- sample while it holds a lock on the page (acquire_sample_rows), and each call that writes there waits for up to 8 ms. In small
-- tables that is the page which all calls write. The plans of their statements are kept, and need no statistics.

do $$
declare
    v_table text;
begin
    foreach v_table in array array['cursors', 'frozen_holes', 'leases', 'acks', 'parked', 'tails', 'waits', 'commits',
                                   'capture_positions', 'leaders', 'workers'] loop
        execute format('alter table headrace_internal.%I set (autovacuum_analyze_threshold = 2147483647)', v_table);
    end loop;
end $$;
