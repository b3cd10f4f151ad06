"""One module per peer, each run in an environment that has nothing but the peer's packages.

program     the process: commands on standard input, answers on standard output
adapter     the interface of an adapter
recorder    the handler of all peers, and what it observed
messages    the messages, and the key of a number
sql         connections of peers that are SQL functions
"""
