"""Write a database URL for other readers of URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import quote, urlencode

from headrace.model.database_url.parameters import PARAMETERS, URL
from headrace.model.database_url.reading import UrlError, read

SqlalchemyDriver = Literal["psycopg", "psycopg2", "asyncpg"]


def write(parameters: Mapping[str, str], scheme: str = "postgresql") -> str:
    """Return the URL for parameters of libpq. Every reader of URLs reads it in the same way."""
    rest = dict(parameters)
    user, password, database = (quote(rest.pop(name, ""), safe="") for name in ("user", "password", "dbname"))
    login = f"{user}{':' * bool(password)}{password}@" if user or password else ""
    place = ""
    if (host := rest.get("host", "")) and not set(host) & set("/,:@"):  # others are understood as a parameter only
        port = rest.pop("port", "")
        place = quote(rest.pop("host"), safe="") + (f":{port}" if port else "")
    return f"{scheme}://{login}{place}/{database}" + (f"?{urlencode(rest, quote_via=quote)}" if rest else "")


def sqlalchemy_url(dsn: str, driver: SqlalchemyDriver) -> str:
    """Return the URL for SQLAlchemy's `create_engine`. Raises `UrlError` if it can't express a parameter for the driver."""
    parameters = read(dsn)
    if (hosts := parameters.get("host", "")) and ("," in hosts or "/" in hosts):
        ports = parameters.get("port", "").split(",")
        parameters["port"] = ",".join(
            port or "5432" for port in (ports * len(hosts.split(",")) if len(ports) == 1 else ports)
        )
    if driver == "asyncpg":
        parameters = _for_asyncpg(parameters)
    return write(parameters, f"postgresql+{driver}")


def _for_asyncpg(parameters: dict[str, str]) -> dict[str, str]:
    """The parameters that SQLAlchemy passes to asyncpg as arguments. It has no other way to pass any."""
    passed = {parameter.name for parameter in PARAMETERS if parameter.argument not in ("", URL)} | {"host", "port"}
    without_effect = {parameter.name for parameter in PARAMETERS if parameter.effect.startswith("ignored")}
    found = {}
    for name, value in parameters.items():
        if name == "sslmode":
            found["ssl"] = value
        elif name in passed:
            found[name] = value
        elif name not in without_effect | {"connect_timeout"} and (name, value) != ("channel_binding", "prefer"):
            raise UrlError(
                f"has {name}, which SQLAlchemy can't pass to asyncpg. Use the driver psycopg for the engine."
            )
    return found
