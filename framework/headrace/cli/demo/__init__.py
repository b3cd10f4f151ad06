"""The demo: every change that a git repository's history made to a file is a message, and the tree that results is checked.

command      `headrace demo`: the steps, and the report
sources      where changes come from: a repository, or a file of them
git          running git, and its answers
git_history  the parser of git's log
names        from a path to a key
keeper       the handler: keeps the state of every file, and checks that each change follows the one before
stream       a stream of the demo's own, gone when it ends
"""
