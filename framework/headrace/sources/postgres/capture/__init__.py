"""Captures sources: `capturing` finds them, `tenure` gives each to one process, and `capturer` moves
changes from the WAL into the stream.

capturing ── tenure ── capturer ─┬─ preparing: server, publication, slot, position
                                 ├─ feed, decoder, spool, shaper ── outbox ── appender ── stream
                                 └─ beside it: backfill, watch, retrying
"""
