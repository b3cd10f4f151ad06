-- Messages that were erased, see functions/erasures.sql. The time to live of messages changes only functions, see
-- functions/expiry.sql.
--
-- Locks: headrace_internal.streams (share row exclusive)

-- What is left of an erased message. It has nothing that the message contained.
create table headrace_internal.erasures (
    stream_id  int not null references headrace_internal.streams (id) on delete cascade,
    seq        bigint not null,
    erased_at  timestamptz not null,
    erased_by  text not null,       -- the name of the token, or else the role
    reason     text,
    primary key (stream_id, seq)
);
