-- The ack that is sent together with a COMMIT has a function of its own, see functions/transactions.sql. And each ack reads
-- the messages of a lease, so a lease of up to 500 messages is kept in one piece.

alter table headrace_internal.leases set (toast_tuple_target = 8160);
