"""`headrace serve`: the HTTP API, in this process or in several processes that share a port."""

from __future__ import annotations

import gc
import logging
import resource
import socket
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from headrace import store
from headrace.app import settings
from headrace.app.app import App
from headrace.app.heartbeats import this_process_is
from headrace.app.settings import Settings
from headrace.cli.options.common import flag
from headrace.cli.options.sizes import size_in_bytes
from headrace.cli.output.logs import LogFormatOption, LogLevelOption, set_up_logging
from headrace.cli.processes import member
from headrace.cli.processes.children import command, lifeline
from headrace.cli.processes.crew import Crew
from headrace.cli.processes.event_loop import run_async
from headrace.cli.processes.member import Member
from headrace.cli.processes.ready_file import ReadyFile
from headrace.model.errors import ConfigurationError
from headrace.telemetry import Telemetry

if TYPE_CHECKING:
    from headrace.server.asgi import Server
    from headrace.server.options import Options
    from headrace.server.transport.listener import Address

logger = logging.getLogger("headrace")

SPARE_FILES = 256
"""Open files that a server needs in addition to its clients' connections."""


def serve(
    *,
    host: Annotated[
        str | None, Parameter(show_default=False, help="Where to listen; 127.0.0.1 by default, 0.0.0.0 for everywhere.")
    ] = None,
    port: Annotated[int | None, Parameter(show_default=False, help="7376 by default; 0 for any that is free.")] = None,
    processes: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1, lte=settings.MOST_PROCESSES), show_default=False,
            help="How many processes share the port; 1 by default.",
        ),
    ] = None,
    database: Annotated[
        str | None,
        Parameter(show_default=False, help="A Postgres URL, or HEADRACE_DATABASE. Without any: the embedded Postgres."),
    ] = None,
    tls_cert: Annotated[
        Path | None, Parameter(name="--tls-cert", show_default=False, help="The certificate, in PEM: then it is HTTPS.")
    ] = None,
    tls_key: Annotated[
        Path | None, Parameter(name="--tls-key", show_default=False, help="Its private key, if that isn't in the same file.")
    ] = None,
    insecure: Annotated[bool, flag("Listen elsewhere than on this machine alone though no token was made.")] = False,
    max_body: Annotated[
        str | None, Parameter(name="--max-body", show_default=False, help="The largest body of a request; 10MB by default.")
    ] = None,
    max_requests: Annotated[
        int | None,
        Parameter(
            name="--max-requests", validator=Number(gte=1, lte=1_000_000), show_default=False,
            help="Requests under way at a time, of each process; 1000 by default. Those that wait for messages count apart.",
        ),
    ] = None,
    push_allow: Annotated[
        list[str] | None,
        Parameter(
            name="--push-allow", negative="", show_default=False,
            help="Let push consumers send there though it is not public: a network such as 10.0.0.0/8, private, or loopback."
            " May be repeated.",
        ),
    ] = None,
    no_capture: Annotated[bool, flag("Leave it to other processes to capture tables.")] = False,
    ready_file: Annotated[
        Path | None,
        Parameter(name="--ready-file", show_default=False, help="A file to keep there, and fresh, while all is ready."),
    ] = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:  # fmt: skip
    """Serve the HTTP API until SIGTERM or SIGINT.

    At the signal it drains. It accepts no more connections, answers the
    requests that wait for messages, and finishes requests under way within
    shutdown_timeout. A second signal stops at once. Any number of servers may
    stand in front of one database.

    You can also set options in the environment, such as HEADRACE_PORT, or in
    [tool.headrace] of pyproject.toml.
    """
    for module in ("litestar", "uvicorn", "httptools", "aiohttp"):
        if find_spec(module) is None:
            raise ConfigurationError(
                f"`headrace serve` needs {module}, which is not installed: pip install 'headrace[server]'."
            )
    me = member.from_environment()
    found = settings.read({
        "host": host, "port": port, "processes": processes, "database": database, "tls_cert": tls_cert, "tls_key": tls_key,
        "ready_file": ready_file, "log_level": log_level, "log_format": log_format,
    })  # fmt: skip
    options = _options(max_body, max_requests, push_allow, capture=not no_capture)
    set_up_logging(found.log_level, found.log_format, me.number if me else None)
    return _Serve(found, options, me, insecure=insecure, database=database).run()


def _options(max_body: str | None, max_requests: int | None, push_allow: list[str] | None, *, capture: bool) -> Options:
    from headrace.server.options import Options
    from headrace.server.push.addresses import AllowedAddresses

    options = Options(push_allow=tuple(push_allow or ()), capture=capture)
    AllowedAddresses(options.push_allow)  # raises at once if a network is invalid
    if max_body is not None:
        options = msgspec.structs.replace(options, max_body=size_in_bytes(max_body, "--max-body"))
    if max_requests is not None:
        options = msgspec.structs.replace(options, max_requests=max_requests)
    return options


class _Serve:
    """One call of the `serve` command."""

    def __init__(
        self, found: Settings, options: Options, me: Member | None, *, insecure: bool, database: str | None
    ) -> None:  # fmt: skip
        from headrace.server.transport.listener import Address
        from headrace.server.transport.tls import Certificate

        self._found = found
        self._options = options
        self._me = me
        self._insecure = insecure
        self._address: Address = Address(found.host, found.port)
        if found.tls_key is not None and found.tls_cert is None:
            raise ConfigurationError("--tls-key is the key of a certificate: give that, too, with --tls-cert.")
        self._certificate = None if found.tls_cert is None else Certificate(found.tls_cert, found.tls_key)
        self._app = App(database or (me.database if me else None))

    def run(self) -> int:
        """Serve until stopped. Returns the exit code."""
        if self._me is not None and self._me.listen_fd is not None:
            member.end_with_parent(self._me)
            return run_async(self._serve, socket.socket(fileno=self._me.listen_fd))
        listening = self._address.bind()
        try:
            return run_async(self._serve if self._found.processes == 1 else self._supervise, listening)
        finally:
            listening.close()

    async def _serve(self, listening: socket.socket) -> int:
        from headrace.server.asgi import Server
        from headrace.server.serve import ServerRunner

        this_process_is("serve")
        server = Server(self._app, _within_open_files(self._options))
        beside: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._tell_metrics(server, beside)
        serving = ServerRunner(
            self._app, server, listening, self._certificate, shutdown_timeout=self._found.shutdown_timeout,
            before_listening=self._judge_openness, on_listening=lambda: self._say(listening), tasks=beside,
        )  # fmt: skip
        path = self._me.ready_path if self._me else self._found.ready_file
        if path is not None:
            beside.append(lambda: ReadyFile(path).keep(serving.ready))
        # Most objects that exist now stay, and a request rarely creates reference cycles, so the
        # garbage collector may run rarely.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        await serving.run()
        return 0

    def _tell_metrics(self, server: Server, beside: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Add the metrics of the app, and of other processes on the port, to `/metrics`."""
        from prometheus_client import CollectorRegistry, generate_latest

        from headrace.server.monitoring.peer_metrics import PeerMetrics

        registry = CollectorRegistry()
        wanted = Telemetry.of(self._found.telemetry) or Telemetry(traces=None, metrics=None)
        self._app.telemetry = msgspec.structs.replace(wanted, prometheus_registry=registry)
        server.monitoring.further = lambda: generate_latest(registry).decode()
        if self._me is not None and self._me.directory is not None and self._me.number is not None:
            siblings = PeerMetrics(Path(self._me.directory), self._me.number, server.monitoring.own)
            server.monitoring.labels = siblings.labels
            server.monitoring.peer_metrics = siblings.ask
            beside.append(siblings.answer)

    async def _supervise(self, listening: socket.socket) -> int:
        """Run several server processes. This process only holds the socket and the embedded Postgres."""
        from headrace.server.transport.listener import listen

        self._app.telemetry = False
        async with self._app:
            await self._judge_openness()
            listen(listening)
            self._say(listening)
            with lifeline() as fd, TemporaryDirectory(prefix="headrace-") as directory:
                pattern = Member(
                    number=None, parent_fd=fd, database=self._app.dsn, ready_file=None,
                    listen_fd=listening.fileno(), directory=directory,
                )  # fmt: skip
                return await Crew(self._words(), self._found, pattern, stopping=listening.close).run()

    def _words(self) -> tuple[str, ...]:
        """The command line of one server process. The process gets its socket in another way."""
        options, found = self._options, self._found
        words = ["serve", "--host", found.host, "--port", str(found.port), "--processes", "1"]
        words += ["--max-body", str(options.max_body), "--max-requests", str(options.max_requests)]
        for option, path in (("--tls-cert", found.tls_cert), ("--tls-key", found.tls_key)):
            words += [] if path is None else [option, str(path)]
        for network in options.push_allow:
            words += ["--push-allow", network]
        words += [] if options.capture else ["--no-capture"]
        return tuple(command(found, *words, *(["--insecure"] if self._insecure else [])))

    async def _judge_openness(self) -> None:
        """Raise `ConfigurationError` if other machines can reach the server and it needs no token."""
        if self._insecure or self._address.loopback or await store.any_token(self._app.database):
            return
        raise ConfigurationError(
            f"{self._found.host} can be reached from other machines, and no token has been made, so anybody could do anything: make one"
            " (`headrace token add NAME --scope admin`), listen on 127.0.0.1, or say --insecure."
        )

    def _say(self, listening: socket.socket) -> None:
        from headrace.server.transport.listener import url_of

        if self._me is None:
            url = url_of(listening, tls=self._certificate is not None)
            logger.info("listening on %s", url)


def _within_open_files(options: Options) -> Options:
    """Limit the connections to what the process's limit of open files allows. Most shells set that limit too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = options.max_connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return options
    most = max(soft - SPARE_FILES, 16)
    logger.warning("this process may open %d files, so it takes %d connections at most: see `ulimit -n`", soft, most)
    return msgspec.structs.replace(options, max_connections=most)
