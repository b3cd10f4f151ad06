"""Change capture: Postgres tables as streams. Each room is a station of the way that a change takes.

    server's WAL ─── connection ─── pgoutput ─── capture ─── shaping ─── capture ─── stream
                     (feed, libpq)  (bytes to     (whole       (rows to    (appended with the position;
                                    messages)     transactions) messages)   only then the server is told)
    server's tables ─── backfill ─────────────────┘             └─ values: Postgres' text to JSON

`capture` finds the sources, and holds one tenure for each of them among all processes; `server` sees to publications and slots, and checks
what there is; `spec` has a source's settings. Needs psycopg, of which only `connection.link` knows: `pip install 'headrace[capture]'`.
"""
