"""Classifies a server's error messages: temporary problems, and problems that have to be corrected.

Error codes are used where there are any. libpq returns none for a failed connection attempt, so the
message text is used there.
"""

from __future__ import annotations

from headrace.model.errors import HeadraceError
from headrace.sources.postgres.errors import SourceLocked, SourceRefused, SourceStopped, SourceUnavailable

_LOCK_TIMEOUT = "55P03"

# Shutdown, restart, out of connections, memory or disk, idle timeout, a deadlock.
_TRANSIENT = frozenset(
    ("25P03", "25P04", "40001", "40P01", "53000", "53100", "53200", "53300", "57P01", "57P02", "57P03", "57P05")
)


def statement_error(sqlstate: str, text: str, hint: str | None = None) -> HeadraceError:
    """Return the error for a refused statement: `SourceUnavailable` if the problem is temporary,
    otherwise `SourceRefused`.
    """
    if sqlstate == _LOCK_TIMEOUT:
        return SourceLocked(f"The captured database is temporarily unavailable: {text}.")
    if sqlstate in _TRANSIENT or sqlstate.startswith("08"):
        return SourceUnavailable(f"The captured database is temporarily unavailable: {text}.")
    return SourceRefused(sqlstate, text, hint)


# Parts of servers' messages, each with the correction.
_CONNECTION_ERRORS: tuple[tuple[str, str], ...] = (
    ("password authentication failed", "Set the right password in the source's database URL"),
    ("no password supplied", "Write the password into the source's database URL, or into ~/.pgpass"),
    ("authentication failed", "Compare the user in the source's database URL with the server's pg_hba.conf"),
    ("no pg_hba.conf entry", "Add a line for this host and user to pg_hba.conf, then run: select pg_reload_conf()"),
    ("pg_hba.conf rejects", "Change the line of pg_hba.conf that rejects this user, then run: select pg_reload_conf()"),
    ("is not permitted to log in", "Let the role log in: alter role ... login"),
    ("permission denied to start WAL sender", "Let the role replicate: alter role ... replication"),
    ("must be superuser or replication role to start walsender", "Let the role replicate: alter role ... replication"),
    ("permission denied for database", "Let the role connect: grant connect on database ... to ..."),
    (
        "is not currently accepting connections",
        "Let the database accept connections: alter database ... allow_connections true",
    ),
    ("server does not support SSL", "Remove sslmode from the URL, or set up TLS on the server"),
    ("certificate verify failed", "Its certificate is not trusted. Set the right sslrootcert in the URL"),
    ("root certificate file", "The root certificate is missing. Set the right sslrootcert in the URL"),
)


def connection_error(text: str, label: str) -> HeadraceError:
    """Return the error for a connection attempt that failed.

    Args:
        text: libpq's message, which never has a password.
        label: which database it is about, such as `orders at db.example:5432 as ada`.
    """
    message = one_line(text)
    for part, advice in _CONNECTION_ERRORS:
        if part in message:
            return SourceStopped(f"The captured database {label} refuses the connection: {message}. {advice}.")
    if "FATAL" in message and "does not exist" in message:  # a role or a database does not exist
        return SourceStopped(
            f"The captured database {label} refuses the connection: {message}. Correct the source's database URL, or create what is missing."
        )
    return SourceUnavailable(f"The captured database {label} can't be reached: {message}.")


def setup_error(error: SourceRefused) -> SourceStopped:
    """Return the error for a refusal that is due to the server's setup, with the correction where it
    is known.
    """
    if error.sqlstate == "42501":
        return SourceStopped(f"The role lacks a privilege in the captured database: {error.server_message}.")
    if error.sqlstate == "53400" or is_about_slots(error):
        return SourceStopped(
            f"The captured server has no free replication slot: {error.server_message}. Drop an unused one (see pg_replication_slots), or raise"
            " max_replication_slots and restart the server."
        )
    if is_about_wal_level(error):
        return SourceStopped(
            f"The wal_level of the captured server is too low: {error.server_message}. Restart the server after the change.",
            "alter system set wal_level = 'logical';",
        )
    return SourceStopped(str(error))


def is_about_wal_level(error: SourceRefused) -> bool:
    """Whether the server's wal_level is too low for changes. Names of settings are the same in all
    languages.
    """
    return error.sqlstate == "55000" and "wal_level" in error.server_message


def is_about_slots(error: SourceRefused) -> bool:
    """Whether the server is configured without replication slots."""
    return error.sqlstate == "55000" and "max_replication_slots" in error.server_message


def one_line(text: str) -> str:
    """Return a message of the server or libpq on one line, without the final full stop, and without
    libpq's question.
    """
    lines = [line for line in text.splitlines() if not line.strip().startswith("Is the server running ")]
    return " ".join(" ".join(lines).split()).removesuffix(".")
