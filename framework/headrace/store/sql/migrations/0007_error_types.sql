-- The type of the error that a dead letter died of, by which dead letters are counted, listed, redriven and purged.
--
-- Locks: headrace_internal.dead_letters (access exclusive), headrace_internal.dead_letters (share)

alter table headrace_internal.dead_letters add column error_type text collate "C";

create index dead_letters_by_type on headrace_internal.dead_letters (consumer_id, error_type, died_at, seq);
