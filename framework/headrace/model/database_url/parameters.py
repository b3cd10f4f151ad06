"""The parameters of libpq, in the order of its manual, with their effect on the connections of the store.

asyncpg knows some of them. It sends those that it does not know to the server, as settings of the session.
"""

from __future__ import annotations

import msgspec

AS_PSQL = "as for psql"
ANY = ("",)
"""Stands for every value in `Parameter.refused`."""

URL = "dsn"
"""Stands in `Parameter.argument` for what asyncpg reads from its URL alone."""


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a database URL.

    Attributes:
        name: its name in libpq.
        variable: the environment variable that completes it. asyncpg, and so the store, reads fewer of them than libpq.
        argument: the argument of `asyncpg.connect` that has it. Empty if Headrace reads it, or if it has no effect.
        effect: its effect on connections of the store, in words.
        libpq: its effect on the connections of libpq, in words: those of captures and of Spark.
        choices: its values, if they are fixed.
        number: whether its value is a number.
        refused: the values that connections of the store refuse, because asyncpg would ignore them, and that would weaken
            security or lead to another connection than the one asked for.
        instead: the way out, in one sentence.
    """

    name: str
    variable: str | None = None
    argument: str = ""
    effect: str = AS_PSQL
    libpq: str = AS_PSQL
    choices: tuple[str, ...] = ()
    number: bool = False
    refused: tuple[str, ...] = ()
    instead: str = ""


_LOST_SERVERS = "ignored: Headrace [detects a lost server](failures.md) within seconds by its own settings"
_NO_SCRAM_KEYS = "Give the password, since asyncpg logs in with nothing else."
_NO_OAUTH = "Give a user with a password or a certificate, since asyncpg has no OAuth."
_TLS_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_TLS_VERSIONS = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")
_TARGETS = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")
_SWITCH = ("0", "1")

PARAMETERS = (
    Parameter("host", "PGHOST", effect="as for psql. Several hosts are tried in turn"),
    Parameter(
        "hostaddr",
        effect="as for psql. Beside `host` it is refused with `sslmode=verify-full`, since asyncpg compares the certificate"
        " with the address. It looks for the address in the password file, too",
    ),
    Parameter("port", "PGPORT"),
    Parameter("dbname", "PGDATABASE", "database"),
    Parameter("user", "PGUSER", "user"),
    Parameter("password", "PGPASSWORD", "password"),
    Parameter("passfile", "PGPASSFILE", "passfile"),
    Parameter(
        "require_auth",
        effect="refused unless the server's certificate is verified, since asyncpg logs in as the server asks",
    ),
    Parameter(
        "channel_binding",
        effect="`require` [verifies the server's certificate](#channel-binding), since asyncpg has no channel binding",
        choices=("disable", "prefer", "require"),
    ),
    Parameter(
        "connect_timeout",
        effect="seconds for all hosts together, from 2 to 600. 10 without it, and for 0",
        libpq="seconds for each address. 10 without it",
        number=True,
    ),
    Parameter("client_encoding", effect="ignored: it is UTF-8", libpq="ignored: it is UTF-8"),
    Parameter("options", effect="as for psql. Its timeouts and settings of TCP take the place of Headrace's own"),
    Parameter(
        "application_name",
        effect="ignored: connections have names of Headrace",
        libpq="ignored by captures, used by Spark",
    ),
    Parameter("fallback_application_name", effect="ignored", libpq="ignored by captures, used by Spark"),
    *(
        Parameter(name, effect=_LOST_SERVERS, number=True)
        for name in (
            "keepalives",
            "keepalives_idle",
            "keepalives_interval",
            "keepalives_count",
            "tcp_user_timeout",
        )
    ),
    Parameter("replication", libpq="set by captures", refused=ANY, instead="Leave it out. Captures set it themselves."),
    Parameter(
        "gssencmode",
        choices=("disable", "prefer", "require"),
        refused=("require",),
        instead="Encrypt by TLS, with sslmode=verify-full, since asyncpg has no encryption by GSSAPI.",
    ),
    Parameter("sslmode", "PGSSLMODE", URL, choices=_TLS_MODES),
    Parameter("sslnegotiation", "PGSSLNEGOTIATION", URL, choices=("postgres", "direct")),
    Parameter("sslcompression", effect="ignored: there is no compression", choices=_SWITCH),
    Parameter("sslcert", "PGSSLCERT", URL),
    Parameter("sslkey", "PGSSLKEY", URL),
    Parameter("sslkeylogfile", effect="ignored"),
    Parameter("sslpassword", None, URL),
    Parameter(
        "sslcertmode",
        "PGSSLCERTMODE",
        effect="`disable` is refused beside PGSSLCERT and `~/.postgresql/postgresql.crt`, which asyncpg sends",
        choices=("disable", "allow", "require"),
        refused=("require",),
        instead="Leave it out, since asyncpg can't tell whether the server asked for the certificate.",
    ),
    Parameter("sslrootcert", "PGSSLROOTCERT", URL),
    Parameter("sslcrl", "PGSSLCRL", URL),
    Parameter("sslcrldir", refused=ANY, instead="Name one file with the lists as sslcrl."),
    Parameter("sslsni", effect="ignored: the name is sent", choices=_SWITCH),
    Parameter("requirepeer", refused=ANY, instead="Leave it out, since asyncpg can't see the server's user."),
    Parameter("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", URL, choices=_TLS_VERSIONS),
    Parameter("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", URL, choices=_TLS_VERSIONS),
    Parameter(
        "min_protocol_version",
        choices=("3.0", "3.2", "latest"),
        refused=("3.2", "latest"),
        instead="Leave it out, since asyncpg has version 3.0 alone.",
    ),
    Parameter(
        "max_protocol_version",
        effect="ignored: the version is 3.0",
        choices=("3.0", "3.2", "latest"),
    ),
    Parameter("krbsrvname", "PGKRBSRVNAME", "krbsrvname"),
    Parameter("gsslib", "PGGSSLIB", "gsslib"),
    Parameter("gssdelegation", effect="ignored: nothing is delegated", choices=_SWITCH),
    *(Parameter(f"scram_{side}_key", refused=ANY, instead=_NO_SCRAM_KEYS) for side in ("client", "server")),
    Parameter("service", "PGSERVICE"),
    Parameter("servicefile", "PGSERVICEFILE", libpq="for libpq 19"),
    Parameter("target_session_attrs", "PGTARGETSESSIONATTRS", "target_session_attrs", choices=_TARGETS),
    Parameter("load_balance_hosts", choices=("disable", "random")),
    *(
        Parameter(f"oauth_{name}", refused=ANY, instead=_NO_OAUTH)
        for name in ("issuer", "client_id", "client_secret", "scope")
    ),
)
