"""Judgement: plain, synchronous, deterministic objects that decide what must be done. No I/O, and time is passed in.

`lanes` keeps each key's messages in turn; `custody` knows what is leased and what became of it; `demand` says how many messages
to ask for and when to look again; `governor` finds the concurrency.
"""
