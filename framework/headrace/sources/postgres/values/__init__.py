"""Converts values of Postgres from the server's text form to JSON.

A converter takes the text of a value that is not null and returns its JSON text. No digit of the text is lost, so
`numeric` never becomes a float. Captured changes and backfill reads use the same converters, since `SETTINGS` gives both
the same text form.
Converters of built-in types are in `scalars` and `datetimes`. Those of types that consist of others,
such as arrays, are in `nested`. `types` reads what a type consists of from the server's catalog.
"""

from headrace.sources.postgres.values.converters import converter
from headrace.sources.postgres.values.scalars import Converter
from headrace.sources.postgres.values.types import Queryable, TypeInfo, load_types

SETTINGS: dict[str, str] = {
    "client_encoding": "UTF8",
    "datestyle": "ISO,MDY",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "1",  # the fewest digits that identify a float exactly
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
}
"""Session settings that determine the text form of values, which the converters expect. See `settings`."""


def settings(server_encoding: str) -> dict[str, str]:
    """Return `SETTINGS` for a database with an encoding, which is the server's setting
    `server_encoding`.

    A database in SQL_ASCII may hold any bytes. If UTF-8 is requested, the server fails at the first
    invalid bytes, every time. The bytes are therefore requested unconverted, and the converters replace
    what is invalid.
    """
    return SETTINGS | ({"client_encoding": "SQL_ASCII"} if server_encoding == "SQL_ASCII" else {})


__all__ = ["SETTINGS", "Converter", "Queryable", "TypeInfo", "converter", "load_types", "settings"]
