"""Connections to the captured server: libpq's connections, its error messages, and the stream of its
WAL. Only `source_connection` imports psycopg.
"""
