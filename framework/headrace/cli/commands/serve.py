"""`headrace serve`: the HTTP API, in this process or in several processes that share a port."""

from __future__ import annotations

import gc
import resource
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
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
from headrace.cli.options.process import VISIBLE, process_option
from headrace.cli.options.server import ServerBehavior, ServerLimits, log_unknown_variables, server_options, words_of
from headrace.cli.output.logs import LogFormatOption, LogLevelOption, set_up_logging
from headrace.cli.processes import child_info
from headrace.cli.processes.child_info import ChildInfo
from headrace.cli.processes.children import child_command, parent_pipe
from headrace.cli.processes.event_loop import run_async
from headrace.cli.processes.garbage import spare_what_exists
from headrace.cli.processes.ready_file import ReadyFile
from headrace.cli.processes.supervisor import Supervisor
from headrace.model.errors import ConfigurationError
from headrace.model.log import Log
from headrace.model.text.masking import masked
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


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    """Where the server listens, and its database."""

    host: Annotated[str | None, process_option("host")] = None
    port: Annotated[int | None, process_option("port")] = None
    processes: Annotated[int | None, process_option("processes", validator=Number(gte=1, lte=MAX_PROCESSES))] = None
    database: Annotated[str | None, process_option("database", VISIBLE)] = None
    tls_cert: Annotated[Path | None, process_option("tls_cert")] = None
    tls_key: Annotated[Path | None, process_option("tls_key")] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """How the process starts and logs."""

    no_migrate: Annotated[bool, flag("Don't upgrade the schema at start. Fail if it is too old.")] = False
    ready_file: Annotated[Path | None, process_option("ready_file")] = None
    log_level: LogLevelOption = None
    log_format: LogFormatOption = None


def serve(
    *,
    listen: ListenOptions = ListenOptions(),
    insecure: Annotated[bool, flag("Allow access from other machines although no token exists.")] = False,
    behavior: ServerBehavior = ServerBehavior(),  # noqa: B008 - frozen
    limits: ServerLimits = ServerLimits(),  # noqa: B008 - frozen
    process: ProcessOptions = ProcessOptions(),
) -> int:
    """Serve the HTTP API until SIGTERM, SIGINT or SIGHUP.

    At the signal it drains. It accepts no more connections, answers the
    requests that wait for messages, and finishes the other requests within
    shutdown_timeout. A second signal stops immediately. Any number of servers can
    use the same database.

    You can also set options in the environment, such as HEADRACE_PORT, and most
    in [tool.headrace] of pyproject.toml. The server's own options, such as
    --max-body, are HEADRACE_SERVE_MAX_BODY and the like there.
    """
    for module in ("litestar", "uvicorn", "httptools", "aiohappyeyeballs", "yarl"):
        if find_spec(module) is None:
            raise ConfigurationError(
                f"`headrace serve` needs {module}, which is not installed. Install it with: pip install 'headrace[server]'"
            )
    child = child_info.from_environment()
    given = vars(listen) | vars(process)
    given["migrate"] = False if given.pop("no_migrate") else None
    settings = read_settings(given)
    set_up_logging(settings.log_level, settings.log_format, child.number if child else None)
    options = server_options(behavior, limits, host=settings.host)
    if child is None:
        log_unknown_variables()
    return ServeCommand(settings, options, child, insecure=insecure, database=listen.database).run()


class ServeCommand:
    """One call of the `serve` command."""

    def __init__(
        self, settings: Settings, options: Options, child: ChildInfo | None, *, insecure: bool, database: str | None
    ) -> None:
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
        from headrace.sources.postgres.rules.transform_watchdog import let_end_process

        set_process_kind("serve")
        let_end_process()
        access = Access(lambda: self._app.database, always_closed=not (self._insecure or self._address.loopback))
        server = Server(self._app, _limit_connections(self._options), access)
        serving = ServerRunner(
            self._app,
            server,
            listening,
            self._certificate,
            shutdown_timeout=self._settings.shutdown_timeout,
            before_listening=self._require_token,
            on_listening=lambda: self._log_listening(listening),
        )
        self._expose_metrics(server, serving.tasks)
        path = self._child.ready_path if self._child else self._settings.ready_file
        if path is not None:
            serving.tasks.append(lambda: ReadyFile(path).keep(serving.ready))
        # Most objects that exist now stay, and requests leave no reference cycles, so the garbage collector may run rarely.
        gc.collect()
        spare_what_exists(50_000, 20, 50)
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
                    number=None,
                    parent_fd=fd,
                    database=self._app.dsn,
                    ready_file=None,
                    listen_fd=listening.fileno(),
                    metrics_directory=directory,
                )
                return await Supervisor(
                    self._child_command(), self._settings, pattern, on_stopping=listening.close
                ).run()

    def _child_command(self) -> tuple[str, ...]:
        """Return the command line of one server process. The process inherits its socket."""
        options, settings = self._options, self._settings
        words = ["serve", "--host", settings.host, "--port", str(settings.port), "--processes", "1"]
        words += words_of(options)
        for option, path in (("--tls-cert", settings.tls_cert), ("--tls-key", settings.tls_key)):
            words += [] if path is None else [option, str(path)]
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
            log.info("database connected", database=masked(self._app.database.dsn))
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
