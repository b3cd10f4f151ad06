"""Several databases behind one server.

    request ── target_of ── Router ──▶ Plane of the database ── its own engine, routes, push consumers, sources
                              │
                              └─ Places: which stream lives where (of the configuration database, cached)

Each further database is a complete Headrace, with its own app that runs as long as the server's app.
Tokens and limits of requests are the server's.
"""
