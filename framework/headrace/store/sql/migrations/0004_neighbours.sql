-- Functions that are called from outside pin their search path (`functions/_epilogue.sql`).
--
-- Locks: headrace_internal.streams (access exclusive)

-- A seq that was drawn before. Logical replication copies it and not the sequence, so a publisher finds out that the
-- sequence is behind, see sequences.sql. It rises by doubling, so that the row is seldom written.
alter table headrace_internal.streams add column drawn bigint not null default 0;
