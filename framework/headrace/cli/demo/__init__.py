"""The demo sends every file change in a git repository's history as a message through two worker processes. One of them
is killed, a message makes its handler raise, and a publisher commits late. At the end the books are checked.

command           `headrace demo`: the steps, and the report
scenario          the run: what is published, and what goes wrong meanwhile
screen            what is shown of it
books             what the workers did, in tables that they write with their acks
worker            the service that the worker processes run
worker_settings   what they are told
processes         starts, kills and stops them
speed             measures the machine beside bare inserts
histories         where changes come from: a repository, or a file of changes
repository        runs git, and reads its output
git_log           the parser of git's log
keys              converts a path to a key
temporary_stream  a stream for one run of the demo, dropped when it ends
"""
