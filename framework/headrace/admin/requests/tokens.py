"""The operations on tokens."""

from __future__ import annotations

from headrace.admin.requests.operation import TOKEN, Command, Operation
from headrace.model.tokens import TokenInfo

OPERATIONS: dict[str, Operation] = {
    "revoke_token": Operation(
        "DELETE",
        TOKEN,
        "Revoke a token",
        TokenInfo,
        command=Command(
            "token revoke",
            example="headrace token revoke shop",
            help="Servers apply this within two seconds. The token stays on the list, and its name can't be used again.",
            done="Revoked the token {result.name!r} ({result.id}).",
        ),
    ),
}
