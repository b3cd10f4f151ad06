"""The errors of callers whose token or session is missing or has ended."""

from __future__ import annotations

from headrace.model.errors import Unauthorized


def no_token() -> Unauthorized:
    """Return the error of a request without a token."""
    return Unauthorized("The request has no access token. Send the header `Authorization: Bearer hr_…`.")


def unknown_token() -> Unauthorized:
    """Return the error of a token that the database does not have, or that was revoked."""
    return Unauthorized("The token is unknown or revoked. Create one with `headrace token add`.")


def session_ended() -> Unauthorized:
    """Return the error of a session that can't be used any more."""
    return Unauthorized("The session has ended, because it or its token expired or was revoked. Sign in again.")
