"""The object store as a program: moto's S3, which can be cut off at a request.

It runs with the packages of `moto.txt`, apart from those of the tests. A cut is asked for by `POST /-/cut`. From the request
that it names on, the store answers nobody: it refuses each request, or keeps it waiting, until `POST /-/heal`. `GET /-/struck`
answers once the request has come.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app  # type: ignore[import-not-found, unused-ignore]
from werkzeug.serving import make_server
from werkzeug.wsgi import get_input_stream

REFUSED = b"<Error><Code>AccessDenied</Code><Message>the store is cut off</Message></Error>"
PATIENCE = 180.0  # seconds that a request is kept waiting at most


class Cut:
    """A cut at a request.

    Attributes:
        method: the method of the request, or "COPY" for a PUT that copies an object.
        path: a regular expression for its path.
        after: whether the store still does what the request asks for.
        hold: whether requests are kept waiting, and not refused.
    """

    def __init__(self, method: str, path: str, *, after: bool, hold: bool) -> None:
        self.method, self.path, self.after, self.hold = method, re.compile(path), after, hold
        self.struck, self.healed = threading.Event(), threading.Event()

    def meets(self, method: str, path: str, copies: bool) -> bool:
        found = "COPY" if method == "PUT" and copies else method
        return not self.struck.is_set() and found == self.method and self.path.search(path) is not None


class Store:
    """moto's S3 as a WSGI application, with at most one cut."""

    def __init__(self) -> None:
        self._s3: Callable[..., Iterable[bytes]] = DomainDispatcherApplication(create_backend_app)
        self._cut: Cut | None = None
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path.startswith("/-/"):
            return self._command(path, environ, start)
        with self._lock:
            cut = self._cut
            ours = cut is not None and cut.meets(method, path, "HTTP_X_AMZ_COPY_SOURCE" in environ)
            if cut is None or not (ours or cut.struck.is_set()):
                cut = None
            elif ours and not cut.after:
                cut.struck.set()
        if cut is None:
            return self._s3(environ, start)
        if ours and cut.after:
            done = self._s3(environ, start)
            cut.struck.set()
            if cut.hold:
                cut.healed.wait(PATIENCE)
            return done
        if cut.hold:
            cut.healed.wait(PATIENCE)
        # The rest of its body must not be taken for another request.
        get_input_stream(environ).read()
        start("403 FORBIDDEN", [("Content-Type", "application/xml"), ("Content-Length", str(len(REFUSED)))])
        return [REFUSED]

    def _command(self, path: str, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if path == "/-/cut":
            self._cut = Cut(**json.loads(get_input_stream(environ).read()))
        elif self._cut is not None and path == "/-/struck":
            self._cut.struck.wait(PATIENCE)
        elif self._cut is not None and path == "/-/heal":
            self._cut.healed.set()
            struck, self._cut = self._cut.struck.is_set(), None
            return _answer(start, str(struck).lower())
        return _answer(start, "null")


def _answer(start: Any, text: str) -> list[bytes]:
    start("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(text)))])
    return [text.encode()]


def main() -> None:
    """Serve on a free port, and print it."""
    server = make_server("127.0.0.1", 0, Store(), threaded=True)  # type: ignore[arg-type, unused-ignore]
    print(server.port, flush=True)
    sys.stderr = open("/dev/null", "w")  # noqa: SIM115 - a line for each request
    server.serve_forever()


if __name__ == "__main__":
    main()
