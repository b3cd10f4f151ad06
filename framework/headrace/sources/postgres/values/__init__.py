"""Values of Postgres, from the text that the server makes of them to JSON.

A converter takes the text of a value that is not null and gives its JSON text. Changes and backfill reads go through the same ones, since
both have the text form that `SETTINGS` call for. Every built-in type has its converter in `scalars` and `moments`; what is made of
other types, such as arrays, in `nested`; `types` asks the server's catalog what that is.
"""

from headrace.sources.postgres.values.converters import converter
from headrace.sources.postgres.values.scalars import Converter
from headrace.sources.postgres.values.types import Asks, TypeInfo, load_types

SETTINGS: dict[str, str] = {
    "client_encoding": "UTF8",
    "datestyle": "ISO,MDY",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "1",  # as few digits as it takes to tell a float from its neighbours
    "bytea_output": "hex",
    "xmlbinary": "base64",
    "lc_monetary": "C",
    "quote_all_identifiers": "off",
}
"""Settings of a session, under which all text that is to be converted has to be made; see `settings`."""


def settings(server_encoding: str) -> dict[str, str]:
    """`SETTINGS` for a database in an encoding, which the server tells of itself as `server_encoding`.

    One in SQL_ASCII may hold any bytes, and asked for UTF-8 the server fails at the first that are none, for good. So it is asked for the
    bytes as they are, and the converters replace what can't be read.
    """
    return SETTINGS | ({"client_encoding": "SQL_ASCII"} if server_encoding == "SQL_ASCII" else {})


__all__ = ["SETTINGS", "Asks", "Converter", "TypeInfo", "converter", "load_types", "settings"]
