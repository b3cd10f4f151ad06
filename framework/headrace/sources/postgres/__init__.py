"""Change capture: Postgres tables as streams. Each file is a station of the way that a change takes.

    server's WAL ── feed ── pgoutput ── assembly ── shaping ── capturer ── stream
                   (pq)     (bytes to    (whole      (rows to    (appends, with its position;
                             messages)    transactions) messages)  only then tells the server)
    server's tables ── backfill ────────────────────────┘

`capturing` finds the sources and holds one tenure for each of them among all processes; `spec` has their settings, `slots` and `checks`
see to the server. Needs psycopg, of which only `link` knows: `pip install 'headrace[capture]'`.
"""
