"""The server on this machine, which a command prefers to the embedded Postgres where nothing chooses one of them."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

import msgspec

from headrace.cli.output.stderr import print_notice
from headrace.client.address import Server
from headrace.model.errors import ConfigurationError

TIMEOUT = 1.0
"""Seconds that a server has for its answer. A command doesn't wait longer for a program that may be no server."""

_MAX_ANSWER = 16_384


class _Answer(msgspec.Struct, omit_defaults=True):
    """A server's answer to `/v1/me`: the caller, or an error."""

    data: dict[str, object] = {}
    code: str = ""
    summary: str = ""


def preferred_server() -> Server | None:
    """Return the server on the usual port of this machine, or None if a command is to use the project's database or the
    embedded Postgres. Unless a setting chooses, standard error says which it is.

    No token is sent, since any user of the machine may listen on the port.

    Raises:
        ConfigurationError: the server needs a token.
    """
    from headrace.app import settings

    configuration = settings.read()
    if configuration.database is not None or configuration.data is not None:
        return None
    server = Server(f"http://localhost:{configuration.port or settings.PORT}")
    answer, reason = _ask(server)
    if answer is None:
        print_notice(f"Using the embedded Postgres{reason}.")
        return None
    if answer.code == "unauthorized":
        raise ConfigurationError(
            f"The server at {server.url} needs a token. Choose it by --server or HEADRACE_SERVER, and give HEADRACE_TOKEN. For"
            " the embedded Postgres set HEADRACE_DATA to its directory."
        )
    print_notice(f"Using the server at {server.url}.")
    return server


def _ask(server: Server) -> tuple[_Answer | None, str]:
    """Return the answer of a server, or None and why there is none."""
    name = "{}:{}".format(*server.address)
    deadline = time.monotonic() + TIMEOUT
    answer = b""
    try:
        with socket.create_connection(server.address, TIMEOUT) as connection:
            connection.sendall(f"GET /v1/me HTTP/1.0\r\nHost: {name}\r\n\r\n".encode())
            while (left := deadline - time.monotonic()) > 0 and len(answer) < _MAX_ANSWER:
                connection.settimeout(left)
                piece = connection.recv(_MAX_ANSWER)
                if not piece:
                    break
                answer += piece
    except TimeoutError:
        pass
    except OSError:
        return None, ""  # nothing listens
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        found = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=_Answer)
        if (found.code and found.summary) or "scopes" in found.data:
            return found, ""
    late = f"did not answer within {TIMEOUT:g} second"
    return None, f", since {name} {'is no Headrace server' if answer else late}"
