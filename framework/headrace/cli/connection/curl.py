"""`--as-curl`: prints the request that a command would send, as a curl command."""

from __future__ import annotations

import shlex

from headrace.cli.errors import RequestPrinted
from headrace.client.address import Server
from headrace.client.remote import Remote
from headrace.client.request import Request, Response

TOKEN_VARIABLE = "$HEADRACE_TOKEN"


class CurlRemote(Remote):
    """A `Remote` that sends nothing. It prints the first request and ends the command with `RequestPrinted`."""

    def __init__(self, server: Server) -> None:
        super().__init__(server, transport=_PrintingTransport(server))


class _PrintingTransport:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def send(self, request: Request) -> Response:
        print(curl_command(self._server, request))
        raise RequestPrinted

    def close(self) -> None:
        pass


def curl_command(server: Server, request: Request) -> str:
    """Format the request as a curl command line. The token stays in an environment variable."""
    words = ["curl"]
    if request.method != "GET":
        words += ["-X", request.method]
    words.append(shlex.quote(server.url.rstrip("/") + request.target))
    if server.ca_file is not None:
        words += ["--cacert", shlex.quote(server.ca_file)]
    if server.token is not None:
        words += ["-H", f'"Authorization: Bearer {TOKEN_VARIABLE}"']
    if request.content is not None:
        words += ["-H", "'Content-Type: application/json'", "-d", shlex.quote(request.content.decode())]
    return " ".join(words)
