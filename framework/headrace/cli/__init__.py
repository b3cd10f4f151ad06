"""The command line. One file per command; each is imported only when its command is called, so that the start is quick.

main       the tree of commands, and the boundary where errors become sentences and exit codes
run        `run`: load an application (target), set up logging (logs), tell when it is ready (ready_file), and run it here, in
           several processes (processes), or anew whenever its code changes (reload); children and member are both ends of
           what a parent and its processes know of each other
serve      `serve`: the HTTP API, in this process, or in several that share a socket
publish    `publish`: lines of a file (lines), checked and numbered (records), go to a stream
streams    `stream ls|info`
consumers  `consumer ls|info`
migrate    `migrate`
pg         `pg start|stop|status|psql|url`: the embedded Postgres
new        `new NAME`: a service to start from
demo/      `demo`: the history of a git repository through a stream, and the tree that comes out of it
"""
