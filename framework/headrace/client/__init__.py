"""The same administration as `headrace.app.admin`, of a server over HTTP."""

from typing import TYPE_CHECKING, TypeAlias

from headrace.client.remote import Remote
from headrace.client.server import DEFAULT_URL, Server

if TYPE_CHECKING:
    from headrace.app.admin import Admin

    Administration: TypeAlias = Admin | Remote
    """Of a database or of a server: whoever takes one needs not know which."""

__all__ = ["DEFAULT_URL", "Administration", "Remote", "Server"]
