"""Responses to requests of ASGI in one write."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from headrace.server.http import PROTECTION, Response


def send_at_once(cycle: RequestResponseCycle, response: Response) -> bool:
    """Send a response in one write, where `RequestResponseCycle.send` takes two steps.

    While the client doesn't read earlier responses, it returns False, since responses would pile
    up. Then `send` waits for the client.
    """
    if cycle.disconnected:
        return True
    if cycle.flow.write_paused:
        return False
    headers = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *PROTECTION, *response.headers)]
    end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
    length = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(response.body)
    cycle.response_started = cycle.response_complete = True
    cycle.transport.writelines([STATUS_LINE[response.status], *headers, length, end, response.body])
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True
