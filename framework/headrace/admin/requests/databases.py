"""The operations on further databases."""

from __future__ import annotations

from headrace.admin.requests.operation import DATABASE, Command, Operation, read
from headrace.model.records import DatabaseCheck, DatabaseInfo

OPERATIONS: dict[str, Operation] = {
    "database": read(
        DATABASE,
        "Show where servers find the URL of a database",
        DatabaseInfo,
        Command("database info"),
    ),
    "check_database": Operation("POST", DATABASE + "/check", "Check a database", DatabaseCheck, changes=False),
}
