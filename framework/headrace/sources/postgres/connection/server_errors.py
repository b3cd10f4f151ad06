"""Classifies a server's error messages: temporary problems, and problems that have to be corrected.

Error codes are used where there are any. libpq returns none for a failed connection attempt, so the
message text is used there.
"""

from __future__ import annotations

from headrace.model.errors import HeadraceError
from headrace.sources.postgres.errors import SourceRefused, SourceStopped, SourceUnavailable

# Shutdown, restart, out of connections, memory or disk, idle timeout, a lock of another session, a
# deadlock.
_PASSING = frozenset(
    (
        "25P03",
        "25P04",
        "40001",
        "40P01",
        "53000",
        "53100",
        "53200",
        "53300",
        "55P03",
        "57P01",
        "57P02",
        "57P03",
        "57P05",
    )
)


def refusal(sqlstate: str, told: str, hint: str | None = None) -> HeadraceError:
    """Return the error for a refused statement: `SourceUnavailable` if the problem is temporary,
    otherwise `SourceRefused`.
    """
    if sqlstate in _PASSING or sqlstate.startswith("08"):
        return SourceUnavailable(f"The captured database can't go on for now: {told}.")
    return SourceRefused(sqlstate, told, hint)


# Parts of servers' messages, each with the correction.
_REFUSED: tuple[tuple[str, str], ...] = (
    ("password authentication failed", "the password is wrong, or was changed: set the one that is right in the source's database URL"),
    ("no password supplied", "it asks for a password: write one into the source's database URL, or into ~/.pgpass"),
    ("authentication failed", "the user can't prove who he is: compare the source's database URL with the server's pg_hba.conf"),
    ("no pg_hba.conf entry", "its pg_hba.conf lets nobody in from here as this user: add a line for it, then select pg_reload_conf()"),
    ("pg_hba.conf rejects", "its pg_hba.conf keeps this user out: change that line, then select pg_reload_conf()"),
    ("is not permitted to log in", "the role may not log in: alter role ... login"),
    ("permission denied to start WAL sender", "the role may not replicate: alter role ... replication"),
    ("must be superuser or replication role to start walsender", "the role may not replicate: alter role ... replication"),
    ("permission denied for database", "the role may not connect to it: grant connect on database ... to ..."),
    ("is not currently accepting connections", "it lets nobody in: alter database ... allow_connections true"),
    ("server does not support SSL", "it has no TLS: leave sslmode out of the URL, or set the server up for it"),
    ("certificate verify failed", "its certificate is not trusted: give the URL the right sslrootcert"),
    ("root certificate file", "the certificate to check it by is missing: give the URL the right sslrootcert"),
    ("invalid sslmode value", "sslmode is one of disable, allow, prefer, require, verify-ca and verify-full"),
)  # fmt: skip


def connecting(told: str, place: str) -> HeadraceError:
    """Return the error for a connection attempt that failed.

    Args:
        told: libpq's message, which never has a password.
        place: which database it is about, such as `orders at db.example:5432 as ada`.
    """
    said = words(told)
    for part, mend in _REFUSED:
        if part in said:
            return SourceStopped(f"The captured database {place} refuses the connection ({said}): {mend}.")
    if "FATAL" in said and "does not exist" in said:  # a role or a database does not exist
        return SourceStopped(
            f"The captured database {place} refuses the connection ({said}): correct the source's database URL, or create what is missing."
        )
    return SourceUnavailable(f"The captured database {place} can't be reached: {said}.")


def mended(error: SourceRefused) -> SourceStopped:
    """Return the error for a refusal that is due to the server's setup, with the correction where it
    is known.
    """
    if error.sqlstate == "42501":
        return SourceStopped(f"The captured database refuses it for want of a privilege: {error.told}.")
    if error.sqlstate == "53400" or about_slots(error):
        return SourceStopped(
            f"The captured server has no replication slot left: {error.told}. Drop one that nobody needs (pg_replication_slots has"
            " them), or raise max_replication_slots and restart the server."
        )
    if about_wal_level(error):
        return SourceStopped(
            f"The captured server writes too little into its WAL: {error.told}. Restart it after the change.",
            "alter system set wal_level = 'logical';",
        )
    return SourceStopped(str(error))


def about_wal_level(error: SourceRefused) -> bool:
    """Whether the server's wal_level is too low for changes. Names of settings are the same in all
    languages.
    """
    return error.sqlstate == "55000" and "wal_level" in error.told


def about_slots(error: SourceRefused) -> bool:
    """Whether the server is configured without replication slots."""
    return error.sqlstate == "55000" and "max_replication_slots" in error.told


def words(told: str) -> str:
    """Return a message of the server or libpq on one line, without the final full stop, and without
    libpq's question.
    """
    lines = [line for line in told.splitlines() if not line.strip().startswith("Is the server running ")]
    return " ".join(" ".join(lines).split()).removesuffix(".")
