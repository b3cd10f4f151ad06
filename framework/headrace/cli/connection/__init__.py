"""Selects the server or the database of a command, and connects to it.

backend          the options, and their fallbacks: the environment, and the context in use
contexts         named servers and databases, stored in a file
connect          opens the server or the database
curl             `--as-curl`: prints the request instead of sending it
consumer_lookup  finds a consumer by its name alone
"""
