"""Who captures, and how: `capturing` finds the sources, `tenure` sees to it that one process has each, and `capturer` is the way of a change.

capturing ── tenure ── capturer ─┬─ preparing: server, publication, slot, position
                                 ├─ feed, decoder, spool, shaper ── outbox ── appender ── stream
                                 └─ beside it: backfill, watch, retrying
"""
