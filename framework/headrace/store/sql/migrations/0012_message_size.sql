-- A message has a size that every lease call can bring. What is there already stays as it is.

alter table headrace.scheduled add constraint message_size check (
    pg_column_size(data) + coalesce(pg_column_size(headers), 0) <= 700000       -- then it is none, however well it is compressed
    or octet_length(data::text) + coalesce(octet_length(headers::text), 0) <= 200000000) not valid;

do $$
declare
    v_stream  headrace.streams;
begin
    for v_stream in select * from headrace.streams order by id loop
        execute format('alter table %s add constraint message_size check (
                            pg_column_size(data) + coalesce(pg_column_size(headers), 0) <= 700000
                            or octet_length(data::text) + coalesce(octet_length(headers::text), 0) <= 200000000) not valid',
                       v_stream.relation);
    end loop;
end $$;
