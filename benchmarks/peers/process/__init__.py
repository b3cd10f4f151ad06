"""The process of a peer, in an environment that has nothing but the peer's packages.

program     commands on standard input, answers on standard output; `program.mjs` is the same in JavaScript
adapter     the interface of an adapter
recorder    the handler of all peers, and what it observed
messages    the messages, and the key of a number
sql         connections of peers that are SQL functions
"""
