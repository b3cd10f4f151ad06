"""To the captured server: libpq's connections, what it says when it refuses, and the feed of its WAL. Only `link` knows psycopg."""
