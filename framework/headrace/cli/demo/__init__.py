"""The demo sends every file change in a git repository's history as a message, and checks the resulting
tree.

command           `headrace demo`: the steps, and the report
histories         where changes come from: a repository, or a file of changes
repository        runs git, and reads its output
git_log           the parser of git's log
keys              converts a path to a key
file_states       the handler: keeps the state of every file, and checks that each change follows the previous one
temporary_stream  a stream for one run of the demo, dropped when it ends
"""
