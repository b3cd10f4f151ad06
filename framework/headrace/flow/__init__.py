"""Decision logic: plain, synchronous, deterministic objects that decide what must be done. They do no
I/O, and time is passed in.

`lanes` keeps the messages of each key in order. `in_flight` is the in-flight tracker: it records
leased messages and their outcomes. `demand` decides how many messages to lease and when to poll
again. `governor` adapts the concurrency.
"""
