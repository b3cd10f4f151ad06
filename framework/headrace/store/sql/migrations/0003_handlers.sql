-- Handlers that ack in their own transaction, messages that kill who works on them, and consumers that keep to a rate.

-- Acks that were committed together with the effects of a handler, a row for each lease and transaction. The lease still holds
-- those messages, until it is settled or expires: see transactions.sql. Without a foreign key, which would lock the consumer's
-- row at each ack.
create table headrace.acks (
    consumer_id  int not null,
    lease_id     bigint not null,
    seqs         bigint[] not null
);
create unique index acks_by_lease on headrace.acks (consumer_id, lease_id, (seqs[1]));    -- nothing is acked twice
alter table headrace.acks set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- How often in a row a message was in the hands of a worker when that died; see parking.sql.
alter table headrace.parked
    add column crashes  int not null default 0;
alter table headrace.leases
    add column crashes  int[],          -- of each message, in the order of seqs; null when all are 0
    add column started  bigint[];       -- of those that crashed before, which were begun
alter table headrace.leases alter column crashes set storage external;
alter table headrace.leases alter column started set storage external;

-- A bucket of tokens, one for each message, that fills at the rate and holds no more than the burst.
alter table headrace.consumers
    add column rate_limit  float8 check (rate_limit > 0),       -- messages a second; null for no limit
    add column rate_burst  int check (rate_burst > 0);          -- null for as many as come in one second
alter table headrace.cursors
    add column tokens     float8,       -- what was left in it; null for a full one ...
    add column tokens_at  timestamptz;  -- ... at this time
