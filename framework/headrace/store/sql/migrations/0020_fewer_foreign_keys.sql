-- Each lease call inserted a lease and a cursor, and locked and marked the consumer's row for both foreign keys. All that
-- writes these tables holds the consumer's lock, and so does a deletion, which deletes their rows itself.
--
-- Locks: headrace_internal.consumers (access exclusive), headrace_internal.cursors (access exclusive), headrace_internal.leases (access exclusive)

alter table headrace_internal.cursors drop constraint if exists cursors_consumer_id_fkey;
alter table headrace_internal.leases drop constraint if exists leases_consumer_id_fkey;
