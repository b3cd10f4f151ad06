"""`headrace serve`: the HTTP API, in this process or in several processes that share a port."""

from __future__ import annotations

import gc
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
from headrace.app.app import App
from headrace.app.heartbeats import set_process_kind
from headrace.app.settings import MAX_PROCESSES, Settings
from headrace.app.settings import read as read_settings
from headrace.cli.options.common import flag
from headrace.cli.options.sizes import size_in_bytes
from headrace.cli.output.logs import LogFormatOption, LogLevelOption, set_up_logging
from headrace.cli.processes import child_info
from headrace.cli.processes.child_info import ChildInfo
from headrace.cli.processes.children import child_command, parent_pipe
from headrace.cli.processes.event_loop import run_async
from headrace.cli.processes.ready_file import ReadyFile
from headrace.cli.processes.supervisor import Supervisor
from headrace.model.errors import ConfigurationError
from headrace.model.log import Log
from headrace.telemetry import Telemetry

if TYPE_CHECKING:
    from headrace.server.asgi import Server
    from headrace.server.options import Options
    from headrace.server.transport.listener import Address

log = Log("headrace")

RESERVED_FILES = 1256
"""Open files that a server needs in addition to its clients' connections: those of push consumers, of the database, and
others.
"""


def serve(
    *,
    host: Annotated[
        str | None, Parameter(show_default=False, help="The address to listen on; 0.0.0.0 for all interfaces. Default: 127.0.0.1.")
    ] = None,
    port: Annotated[int | None, Parameter(show_default=False, help="The port to listen on; 0 for any free port. Default: 7376.")] = None,
    processes: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1, lte=MAX_PROCESSES), show_default=False,
            help="The number of processes that share the port. Default: 1.",
        ),
    ] = None,
    database: Annotated[
        str | None,
        Parameter(show_default=False, help="A Postgres URL. Default: HEADRACE_DATABASE, then the embedded Postgres. Other users of the machine can see a password in it, but not in HEADRACE_DATABASE."),
    ] = None,
    tls_cert: Annotated[
        Path | None, Parameter(name="--tls-cert", show_default=False, help="A certificate file in PEM. Enables HTTPS.")
    ] = None,
    tls_key: Annotated[
        Path | None, Parameter(name="--tls-key", show_default=False, help="The private key file, if the certificate file doesn't contain the key.")
    ] = None,
    insecure: Annotated[bool, flag("Allow access from other machines although no token exists.")] = False,
    max_body: Annotated[
        str | None, Parameter(name="--max-body", show_default=False, help="The maximum size of a request body. Default: 10MB.")
    ] = None,
    max_requests: Annotated[
        int | None,
        Parameter(
            name="--max-requests", validator=Number(gte=1, lte=1_000_000), show_default=False,
            help="The maximum number of concurrent requests per process, without those that wait for messages. Default: 1000.",
        ),
    ] = None,
    push_allow: Annotated[
        list[str] | None,
        Parameter(
            name="--push-allow", negative="", show_default=False,
            help="Allow push consumers and sources to reach addresses that are not public: a network such as 10.0.0.0/8, private, or"
            " loopback. Repeat for several.",
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        Parameter(
            name="--allowed-host", negative="", show_default=False,
            help="A name or address of the server, besides loopback, that requests may name in their Host header while no"
            " token exists. Repeat for several.",
        ),
    ] = None,
    transforms: Annotated[
        list[str] | None,
        Parameter(
            name="--transforms", negative="", show_default=False,
            help="A module whose functions sources may name as their transform over HTTP. A package allows its submodules."
            " Default: none. Repeat for several.",
        ),
    ] = None,
    no_capture: Annotated[bool, flag("Don't capture tables in this server.")] = False,
    no_migrate: Annotated[bool, flag("Don't upgrade the schema at start. Fail if it is too old.")] = False,
    ready_file: Annotated[
        Path | None,
        Parameter(name="--ready-file", show_default=False, help="A file that exists, and is touched every second, while the server is ready."),
    ] = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> int:  # fmt: skip
    """Serve the HTTP API until SIGTERM or SIGINT.

    At the signal it drains. It accepts no more connections, answers the
    requests that wait for messages, and finishes the other requests within
    shutdown_timeout. A second signal stops at once. Any number of servers can
    use the same database.

    You can also set options in the environment, such as HEADRACE_PORT, or in
    [tool.headrace] of pyproject.toml.
    """
    for module in ("litestar", "uvicorn", "httptools", "aiohttp"):
        if find_spec(module) is None:
            raise ConfigurationError(
                f"`headrace serve` needs {module}, which is not installed. Install it with: pip install 'headrace[server]'"
            )
    child = child_info.from_environment()
    settings = read_settings({
        "host": host, "port": port, "processes": processes, "database": database, "tls_cert": tls_cert, "tls_key": tls_key,
        "migrate": False if no_migrate else None, "ready_file": ready_file, "log_level": log_level, "log_format": log_format,
    })  # fmt: skip
    options = _options(
        max_body, max_requests, push_allow, allowed_host, transforms, settings.host, capture=not no_capture
    )
    set_up_logging(settings.log_level, settings.log_format, child.number if child else None)
    return ServeCommand(settings, options, child, insecure=insecure, database=database).run()


def _options(
    max_body: str | None, max_requests: int | None, push_allow: list[str] | None, allowed_hosts: list[str] | None,
    transforms: list[str] | None, host: str, *, capture: bool,
) -> Options:  # fmt: skip
    from headrace.server.access.origins import OriginPolicy
    from headrace.server.access.transform_modules import TransformModules
    from headrace.server.options import Options
    from headrace.server.push.addresses import AllowedAddresses

    hosts = [*(allowed_hosts or ()), host.partition("%")[0]]  # clients may name the address that it listens on
    options = Options(
        push_allow=tuple(push_allow or ()), allowed_hosts=tuple(dict.fromkeys(hosts)),
        transforms=tuple(transforms or ()), capture=capture,
    )  # fmt: skip
    AllowedAddresses(options.push_allow)  # raises at once if a network is invalid
    OriginPolicy(allowed_hosts or ())  # or a host
    TransformModules(options.transforms)  # or a module
    if max_body is not None:
        options = msgspec.structs.replace(options, max_body=size_in_bytes(max_body, "--max-body"))
    if max_requests is not None:
        options = msgspec.structs.replace(options, max_requests=max_requests)
    return options


class ServeCommand:
    """One call of the `serve` command."""

    def __init__(
        self, settings: Settings, options: Options, child: ChildInfo | None, *, insecure: bool, database: str | None
    ) -> None:  # fmt: skip
        from headrace.server.transport.listener import Address
        from headrace.server.transport.tls import Certificate

        self._settings = settings
        self._options = options
        self._child = child
        self._insecure = insecure
        self._address: Address = Address(settings.host, settings.port)
        if settings.tls_key is not None and settings.tls_cert is None:
            raise ConfigurationError("--tls-key needs a certificate. Give it with --tls-cert.")
        self._certificate = None if settings.tls_cert is None else Certificate(settings.tls_cert, settings.tls_key)
        self._app = App(database or (child.database if child else None), migrate=settings.migrate)

    def run(self) -> int:
        """Serve until stopped. Returns the exit code."""
        if self._child is not None and self._child.listen_fd is not None:
            child_info.stop_with_parent(self._child)
            return run_async(self._serve, socket.socket(fileno=self._child.listen_fd))
        listening = self._address.bind()
        try:
            return run_async(self._serve if self._settings.processes == 1 else self._supervise, listening)
        finally:
            listening.close()

    async def _serve(self, listening: socket.socket) -> int:
        from headrace.server.access.scopes import Access
        from headrace.server.asgi import Server
        from headrace.server.serve import ServerRunner

        set_process_kind("serve")
        access = Access(lambda: self._app.database, always_closed=not (self._insecure or self._address.loopback))
        server = Server(self._app, _limit_connections(self._options), access)
        background: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._expose_metrics(server, background)
        serving = ServerRunner(
            self._app, server, listening, self._certificate, shutdown_timeout=self._settings.shutdown_timeout,
            before_listening=self._require_token, on_listening=lambda: self._log_listening(listening), tasks=background,
        )  # fmt: skip
        path = self._child.ready_path if self._child else self._settings.ready_file
        if path is not None:
            background.append(lambda: ReadyFile(path).keep(serving.ready))
        # Most objects that exist now stay, and a request rarely creates reference cycles, so the
        # garbage collector may run rarely.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        await serving.run()
        return 0

    def _expose_metrics(self, server: Server, background: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        """Add the metrics of the app, and of other processes on the port, to `/metrics`."""
        from prometheus_client import CollectorRegistry, generate_latest

        from headrace.server.monitoring.peer_metrics import PeerMetrics

        registry = CollectorRegistry()
        telemetry = Telemetry.of(self._settings.telemetry) or Telemetry(traces=None, metrics=None)
        self._app.telemetry = msgspec.structs.replace(telemetry, prometheus_registry=registry)
        server.monitoring.further = lambda: generate_latest(registry).decode()
        if self._child is not None and self._child.metrics_directory is not None and self._child.number is not None:
            peers = PeerMetrics(Path(self._child.metrics_directory), self._child.number, server.monitoring.own)
            server.monitoring.labels = peers.labels
            server.monitoring.peer_metrics = peers.ask
            background.append(peers.answer)

    async def _supervise(self, listening: socket.socket) -> int:
        """Run several server processes. This process only holds the socket and the embedded Postgres."""
        from headrace.server.transport.listener import listen

        self._app.telemetry = False
        async with self._app:
            await self._require_token()
            listen(listening)
            self._log_listening(listening)
            with parent_pipe() as fd, TemporaryDirectory(prefix="headrace-") as directory:
                pattern = ChildInfo(
                    number=None, parent_fd=fd, database=self._app.dsn, ready_file=None,
                    listen_fd=listening.fileno(), metrics_directory=directory,
                )  # fmt: skip
                return await Supervisor(
                    self._child_command(), self._settings, pattern, on_stopping=listening.close
                ).run()

    def _child_command(self) -> tuple[str, ...]:
        """Return the command line of one server process. The process inherits its socket."""
        options, settings = self._options, self._settings
        words = ["serve", "--host", settings.host, "--port", str(settings.port), "--processes", "1"]
        words += ["--max-body", str(options.max_body), "--max-requests", str(options.max_requests)]
        for option, path in (("--tls-cert", settings.tls_cert), ("--tls-key", settings.tls_key)):
            words += [] if path is None else [option, str(path)]
        for network in options.push_allow:
            words += ["--push-allow", network]
        for host in options.allowed_hosts:
            words += ["--allowed-host", host]
        for module in options.transforms:
            words += ["--transforms", module]
        words += [] if options.capture else ["--no-capture"]
        words += [] if settings.migrate else ["--no-migrate"]
        return tuple(child_command(settings, *words, *(["--insecure"] if self._insecure else [])))

    async def _require_token(self) -> None:
        """Raise `ConfigurationError` if other machines can reach the server and it needs no token."""
        if self._insecure or self._address.loopback or await store.any_token(self._app.database):
            return
        raise ConfigurationError(
            f"Other machines can reach {self._settings.host}, and no token exists, so they would have full access. Create a token with"
            " `headrace token add NAME --scope admin`, listen on 127.0.0.1, or give --insecure."
        )

    def _log_listening(self, listening: socket.socket) -> None:
        from headrace.server.transport.listener import url_of

        if self._child is None:
            url = url_of(listening, tls=self._certificate is not None)
            log.info("listening", url=url)


def _limit_connections(options: Options) -> Options:
    """Limit the connections to what the process's limit of open files allows. Most shells set that limit too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = options.max_connections + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return options
    limit = max(soft - RESERVED_FILES, soft // 2, 16)
    log.warning(
        "connections limited by open files", open_files=soft, connections=limit, hint="raise the limit with `ulimit -n`"
    )
    return msgspec.structs.replace(options, max_connections=limit)
