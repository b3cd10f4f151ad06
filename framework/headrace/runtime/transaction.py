"""A transaction of the database, as a handler or a service sees it."""

from __future__ import annotations

from typing import Any


class Transaction:
    """An asyncpg connection inside an open transaction."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
