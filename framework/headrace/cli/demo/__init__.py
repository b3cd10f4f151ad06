"""The demo sends every file change in a git repository's history as a message, and checks the resulting
tree.

command      `headrace demo`: the steps, and the report
sources      where changes come from: a repository, or a file of changes
git          runs git, and reads its output
git_history  the parser of git's log
names        converts a path to a key
keeper       the handler: keeps the state of every file, and checks that each change follows the one before
stream       a stream for one run of the demo, dropped when it ends
"""
