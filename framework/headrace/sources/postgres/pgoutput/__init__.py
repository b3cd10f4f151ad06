"""pgoutput, the output plugin of PostgreSQL's logical replication: decodes its messages, of protocol
versions 1 to 4.

See https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html.
"""
