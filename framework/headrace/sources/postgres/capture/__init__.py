"""Captures sources: `capturing` finds them, `capture_lease` gives each to one process, and
`capturer` moves changes from the WAL into the stream.

capturing ── capture_lease ── capturer ─┬─ preparation: server, publication, slot, position
                                        ├─ replication_stream, decoder, spool, shaper ── outbox ── appender ── stream
                                        └─ at the same time: backfill, slot_monitor, failure_retries
"""
