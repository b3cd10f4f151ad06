"""HTTP client of a Headrace server. It has the same methods as `headrace.app.admin`."""

from typing import TYPE_CHECKING, TypeAlias

from headrace.client.remote import Remote
from headrace.client.server import DEFAULT_URL, Server

if TYPE_CHECKING:
    from headrace.app.admin import Admin

    Administration: TypeAlias = Admin | Remote
    """The administration of a database or of a server. Code that takes one works with both."""

__all__ = ["DEFAULT_URL", "Administration", "Remote", "Server"]
