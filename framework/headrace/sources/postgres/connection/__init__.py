"""Connections to the captured server: libpq's connections, its error messages, and the feed of its
WAL. Only `link` imports psycopg.
"""
