"""The command line. Each command is a function in its own file or in that of its group, which is imported
only when the command is called, so that the start is quick.

main         the tree of commands, and the boundary where errors become messages and exit codes
groups       the commands of `headrace stream`, `consumer`, `source`, `token` and `context`
examples     examples at the end of help texts
errors       errors that only the command line raises
exit_codes   the exit codes, and their description
commands/    the commands
options/     options that several commands share, and the parsing of their values
connection/  selects a server or a database, and connects to it
processes/   `run` and `serve` as one process, as several, or restarted when code changes
input/       reads messages from files and pipes
output/      tables, JSON, messages to standard error, progress, logs
observe/     `observe`: a terminal monitor
demo/        `demo`: sends the history of a git repository through a stream, and checks the resulting tree
"""
