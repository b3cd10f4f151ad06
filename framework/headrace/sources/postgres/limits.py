"""The timings and sizes of a capture. They are not settings of a source. Tests use smaller ones."""

from __future__ import annotations

import msgspec


class CaptureLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Timings in seconds, and sizes, of the captures in one process."""

    sources_interval: float = 2.0
    """Seconds between two checks of the list of sources. Other processes create, change and release
    sources, too.
    """
    first_retry_delay: float = 0.1
    """Delay in seconds before a waiting source is retried for the first time. It doubles up to
    `longest_retry_delay`.
    """
    longest_retry_delay: float = 5.0
    """Longest delay in seconds before a waiting source is retried."""
    stopped_retry_delay: float = 10.0
    """Seconds before a stopped source is retried, since its problem may have been corrected."""

    import_timeout: float = 30.0
    """Longest time in seconds that the import of a transform's module may take."""

    transform_timeout: float = 3.0
    """Longest time in seconds that a transform may take for one message. With the time between two renewals it is
    shorter than the capture lease, so that no other process takes the source over and is held up as well.
    """
    interruption_grace: float = 1.0
    """Seconds that an interrupted transform may continue before its process ends."""

    idle_position_interval: float = 10.0
    """Interval in seconds at which an idle source stores its position, so that its slot advances."""
    table_check_interval: float = 1.0
    """Seconds between two looks at what the tables consist of, and whether the server refuses writes of them."""

    gather_interval: float = 0.3
    """Seconds to wait for further sources of a shared slot before it is read, since they start at the same time."""
    catch_up_bytes: int = 1024 * 1024
    """Size of WAL that a source may be behind the other sources of its shared slot to be read with them."""
    behind_bytes: int = 64 * 1024 * 1024
    """Size of WAL that a source may be behind the other sources of its shared slot when the slot begins to be read. One
    that is further behind is read by itself.
    """
    hold_up_timeout: float = 10.0
    """Seconds that a source may hold up the other sources of its shared slot. After that it is read by itself."""

    outbox_messages: int = 2_500
    """Number of messages that may wait in the outbox before the capturer stops reading. As many are being appended."""
    outbox_bytes: int = 8 * 1024 * 1024
    """Number of bytes that may wait in the outbox before the capturer stops reading."""

    append_idle_timeout: float = 5.0
    """Idle limit in seconds of the open transaction of a large append. The database ends the
    transaction after that, so that a frozen process does not block others.
    """
    append_keepalive_interval: float = 1.0
    """Keep-alive interval in seconds of that transaction, while there is nothing to append."""

    min_chunk_rows: int = 100
    """Smallest number of rows of a backfill chunk, unless its duration, its size or the rate reduce it."""
    first_chunk_rows: int = 1_000
    """Number of rows of the first chunk. Chunks grow while they are fast, and shrink when they are slow."""
    max_chunk_rows: int = 10_000
    """Largest number of rows of a chunk."""
    max_chunk_bytes: int = 8 * 1024 * 1024
    """Largest size of a chunk's values in bytes. A single row may be larger."""
    max_changed_rows: int = 250_000
    """Number of rows that have changed during a backfill and are remembered, of about 100 to 200 bytes each."""
    visibility_timeout: float = 2.0
    """Seconds after which a commit that waits for no standby is visible to others."""


DEFAULTS = CaptureLimits()
