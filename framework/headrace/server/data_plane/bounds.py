"""Bounds of what one request of the data plane may ask for."""

MAX_PUBLISHED = 10_000
"""Largest number of messages that one request may publish."""

MAX_RECEIVED = 1000
"""Largest number of messages that one request may receive."""

MAX_SETTLED = 10_000
"""Largest number of messages that one request may settle."""

MAX_DELAY_MS = 365 * 86_400_000
"""Longest delay of a message in milliseconds."""
