"""The kinds of routes, by what they do. See `effects`."""

from __future__ import annotations

from functools import partial

from litestar import delete, get, post, route
from litestar.enums import HttpMethod

read = partial(get, effect="read")
"""Reads something, and changes nothing."""

change = partial(post, effect="change", status_code=200)
"""Does something with an object."""

create = partial(post, effect="change")
"""Creates an object."""

edit = partial(route, http_method=[HttpMethod.PATCH, HttpMethod.PUT], effect="change", status_code=200)
"""Changes the settings of an object. PUT does the same as PATCH."""

remove = partial(delete, effect="change", status_code=200)
"""Deletes an object."""

receive = partial(get, effect="deliver")
"""Leases messages, for clients that can only GET."""

deliver = partial(post, effect="deliver", status_code=200)
"""Leases or settles messages."""
