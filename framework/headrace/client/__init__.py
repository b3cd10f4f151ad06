"""HTTP client of a Headrace server. `Remote` has the same methods as `headrace.admin.Admin`.

`calls` is the table of the calls, and `call` makes a method of each of its rows. `specs` and `answers`
convert what is sent and received. A `request` goes through the `transport`, which keeps `connection`s.
"""

from typing import TYPE_CHECKING, TypeAlias

from headrace.client.address import DEFAULT_URL, Server
from headrace.client.remote import Remote

if TYPE_CHECKING:
    from headrace.admin import Admin

    Administration: TypeAlias = Admin
    """The administration of a database or of a server: an `Admin`, or a `Remote` with its methods."""

__all__ = ["DEFAULT_URL", "Administration", "Remote", "Server"]
