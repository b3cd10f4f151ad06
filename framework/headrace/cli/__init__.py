"""The command line. It has one file per command. Each is imported only when its command is called, so
that the start is quick.

main       the tree of commands, and the boundary where errors become sentences and exit codes
run        `run`: loads an application (target), sets up logging (logs), writes a file when ready (ready_file), and
           runs it here, in several processes (processes), or again whenever its code changes (reload). children and
           member are the two ends of the protocol between a parent and its processes
serve      `serve`: the HTTP API, in this process, or in several that share a socket
publish    `publish`: sends the lines of a file (lines), checked and numbered (records), to a stream
streams    `stream add|ls|info|edit|rm`
consumers  `consumer add|ls|info|edit|rm`
migrate    `migrate`
pg         `pg start|stop|status|psql|url`: the embedded Postgres
new        `new NAME`: a service to start from
demo/      `demo`: sends the history of a git repository through a stream, and checks the resulting tree
"""
