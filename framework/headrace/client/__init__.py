"""HTTP client of a Headrace server. It has the same methods as `headrace.admin`."""

from typing import TYPE_CHECKING, TypeAlias

from headrace.client.address import DEFAULT_URL, Server
from headrace.client.remote import Remote

if TYPE_CHECKING:
    from headrace.admin import Admin

    Administration: TypeAlias = Admin | Remote
    """The administration of a database or of a server. Code that takes one works with both."""

__all__ = ["DEFAULT_URL", "Administration", "Remote", "Server"]
