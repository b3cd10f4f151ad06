"""Change data capture: the row changes of Postgres tables become messages of a stream. The subpackages
in the order of travel:

    server's WAL ─── connection ─── pgoutput ─── capture ─── shaping ─── capture ─── stream
                     (libpq)        (bytes to     (whole       (rows to    (appended with the position,
                                    messages)     transactions) messages)   then confirmed to the server)
    server's tables ─── backfill ─────────────────┘             └─ values: Postgres's text to JSON

`capture` finds the sources, and holds one capture lease per source among all processes. `database`
manages publications and slots, and checks the server's setup. `spec` has a source's settings.
Capture needs psycopg: `pip install 'headrace[capture]'`. Of these modules only `connection.source_connection`
imports it.
"""
