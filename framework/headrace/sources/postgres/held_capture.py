"""A capture that this process holds the lease of."""

from __future__ import annotations

import msgspec

from headrace import store


class HeldCapture(msgspec.Struct, frozen=True):
    """The capture of one source, under its lease.

    Attributes:
        database: Headrace's database, open.
        number: the source's number in it.
        epoch: the epoch of the lease. The database refuses writes of an earlier one.
    """

    database: store.Database
    number: int
    epoch: int
