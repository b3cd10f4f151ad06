"""The URL of a database: one reader for every driver.

libpq defines the parameters, and `parameters.py` lists them, each with its effect on the connections of the store.
"""

from headrace.model.database_url.parameters import PARAMETERS, Parameter
from headrace.model.database_url.reading import UNREADABLE, UrlError, check, is_url, read
from headrace.model.database_url.writing import SqlalchemyDriver, sqlalchemy_url, write

__all__ = [
    "PARAMETERS",
    "UNREADABLE",
    "Parameter",
    "SqlalchemyDriver",
    "UrlError",
    "check",
    "is_url",
    "read",
    "sqlalchemy_url",
    "write",
]
