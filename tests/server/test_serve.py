"""`headrace serve`: its errors at start, its shutdown, several processes on one port, TLS."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace import store
from headrace.cli.main import call
from headrace.model.errors import ConfigurationError
from headrace.server.transport.listener import Address, ListenError, listen
from headrace.server.transport.tls import Certificate
from tests.cli.processes import Commands, Running
from tests.server.raw import connected, echo, limits, listening, request
from tests.support import servers
from tests.support.logs import logged


@pytest.fixture(autouse=True)
def _nothing_of_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HEADRACE_DATABASE", "HEADRACE_HOST", "HEADRACE_PORT", "HEADRACE_PROCESSES", "HEADRACE_TELEMETRY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_DATA", str(tmp_path / "no-postgres-here"))


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with Commands(tmp_path) as commands:
        yield commands


Serve = Callable[..., tuple[Running, httpx.Client]]


@pytest.fixture
def serve(commands: Commands, dsn: str) -> Iterator[Serve]:
    """Start a server on a free port, with a client for it."""
    clients: list[httpx.Client] = []

    def start(*words: str, verify: Any = True) -> tuple[Running, httpx.Client]:
        running = commands("serve", "--port", "0", "--database", dsn, *words)
        assert "headrace_test_" in running.line("database connected  database=")
        url = running.line("listening  url=").rpartition("url=")[2]
        clients.append(httpx.Client(base_url=url, verify=verify, timeout=30))
        return running, clients[-1]

    yield start
    for client in clients:
        client.close()


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    """A thread pool for requests that wait while the test continues."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


def _with_orders(client: httpx.Client, **settings: Any) -> str:
    """Create a stream and a consumer. Returns the consumer's path."""
    assert client.post("/v1/streams", json={"name": "orders"}).status_code == 201
    created = client.post("/v1/streams/orders/consumers", json={"name": "ship", **settings})
    assert created.status_code == 201
    return "/v1/streams/orders/consumers/ship"


def _waits(client: httpx.Client, running: Running) -> None:
    """Wait until a request waits for messages. This polls, because there is no event."""
    while "headrace_server_receivers_waiting 1" not in client.get("/metrics").text:
        assert running.lines


def _receive(client: httpx.Client, where: str, **query: Any) -> list[Any]:
    answer = client.get(f"{where}/receive", params=query)
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["data"]
    return found


# --- shutdown


def test_the_shutdown_answers_waiting_requests_and_accepts_no_more(serve: Serve, aside: ThreadPoolExecutor) -> None:
    running, client = serve()
    where = _with_orders(client)
    waiting = aside.submit(_receive, client, where, wait_for="10m")
    _waits(client, running)
    running.send(signal.SIGTERM)
    assert waiting.result(10) == []
    running.line("draining")
    assert running.end() == 0
    assert not any("Traceback" in line or "error" in line.lower() for line in running.lines)
    with pytest.raises(httpx.ConnectError):
        client.get("/health")


def test_requests_in_progress_are_answered_before_the_shutdown(serve: Serve, dsn: str) -> None:
    running, client = serve()
    _with_orders(client)
    url = client.base_url
    assert url.port is not None

    async def go() -> bytes:
        async with connected(url.port or 0) as raw:
            body = json.dumps({"key": "a", "data": 1}).encode()
            whole = request(body, path=b"/v1/streams/orders/messages")
            await raw.send(whole[:-5])
            # Once a later connection is answered, this one has been read.
            async with connected(url.port or 0) as other:
                assert (await other.ask(request(method=b"GET", path=b"/health"))).status == 200
            running.send(signal.SIGINT)
            await asyncio.to_thread(running.line, "draining")
            answer = await raw.ask(whole[-5:])
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            return await raw.end()

    assert asyncio.run(go()) == b""
    assert running.end() == 0
    assert _ask(dsn, lambda database: store.stream(database, "orders")).messages == 1


def test_a_second_signal_ends_it_at_once(serve: Serve) -> None:
    running, client = serve()
    port = client.base_url.port or 0

    async def go() -> None:
        async with connected(port) as raw:
            await raw.send(request(b"x" * 100, path=b"/v1/streams/orders/messages")[:-5])
            async with connected(port) as other:
                assert (await other.ask(request(method=b"GET", path=b"/health"))).status == 200
            running.send(signal.SIGTERM)
            await asyncio.to_thread(running.line, "draining")
            running.send(signal.SIGTERM)
            await raw.end()

    asyncio.run(go())
    assert running.end() == 0
    assert not any("Traceback" in line for line in running.lines)


def test_the_ready_file_is_there_while_it_serves(serve: Serve, tmp_path: Path) -> None:
    running, client = serve("--ready-file", "ready")
    while not (tmp_path / "ready").exists():
        assert client.get("/ready").json()["ready"]
    running.send(signal.SIGTERM)
    assert running.end() == 0
    assert not (tmp_path / "ready").exists()


def _ask(dsn: str, question: Callable[[store.Database], Any]) -> Any:
    async def ask() -> Any:
        database = store.Database(dsn)
        await database.open()
        try:
            return await question(database)
        finally:
            await database.close()

    return servers.run(ask())


# --- two servers


@pytest.mark.long
def test_two_servers_are_one_service_and_one_that_is_killed_loses_nothing(
    serve: Serve, aside: ThreadPoolExecutor
) -> None:
    first, one = serve()
    second, two = serve()
    where = _with_orders(one, ack_wait_ms=1000, max_waiting=2)
    waiting: Future[list[Any]] = aside.submit(_receive, two, where, wait_for="60s")
    _waits(two, second)
    one.post("/v1/streams/orders/messages", json={"key": "a", "data": 1}).raise_for_status()
    assert [got["message"]["data"] for got in waiting.result(10)] == [1]
    second.send(signal.SIGKILL)
    assert second.end() == -signal.SIGKILL
    again = _receive(one, where, wait_for="60s")
    assert [(got["message"]["data"], got["message"]["attempt"]) for got in again] == [(1, 2)]
    one.post(f"{where}/ack", json={"ack_ids": [again[0]["ack_id"]], "strict": True}).raise_for_status()
    first.send(signal.SIGTERM)
    assert first.end() == 0


# --- several processes


def _pids(running: Running, count: int) -> dict[int, int]:
    return dict(running.started() for _ in range(count))


def _until_it_serves(client: httpx.Client) -> None:
    while True:
        try:
            client.get("/health").raise_for_status()
            return
        except httpx.TransportError:
            pass


def test_several_processes_share_a_port_and_one_that_dies_is_replaced(serve: Serve, tmp_path: Path) -> None:
    running, client = serve("--processes", "2", "--ready-file", "ready")
    pids = _pids(running, 2)
    while not (tmp_path / "ready").exists():
        client.get("/ready")
    where = _with_orders(client)
    for seq in range(20):
        with httpx.Client(base_url=client.base_url) as fresh:  # a new connection, which either process may accept
            fresh.post("/v1/streams/orders/messages", json={"key": f"k{seq}", "data": seq}).raise_for_status()
    text = client.get("/metrics").text
    published = [line for line in text.splitlines() if line.startswith("headrace_server_messages_published_total{")]
    assert sorted(line.split("{")[1].split("}")[0] for line in published) == ['process="1"', 'process="2"']
    assert sum(int(line.split()[-1]) for line in published) == 20
    assert text.count("# TYPE headrace_server_messages_published_total ") == 1
    os.kill(pids[1], signal.SIGKILL)
    running.line("process died, starting another")
    assert _pids(running, 1).keys() == {1}
    with httpx.Client(base_url=client.base_url, timeout=30) as fresh:
        _until_it_serves(fresh)
        assert len(_receive(fresh, where, batch_size=100)) == 20
    running.send(signal.SIGINT)
    assert running.end() == 0
    running.ended_with_all()


@pytest.mark.long
def test_the_shutdown_of_several_processes_answers_waiting_requests(serve: Serve, aside: ThreadPoolExecutor) -> None:
    running, client = serve("--processes", "2")
    _pids(running, 2)
    where = _with_orders(client)
    waiting = aside.submit(_receive, client, where, wait_for="10m")
    while not any(
        line.startswith("headrace_server_receivers_waiting{") and line.endswith(" 1")
        for line in client.get("/metrics").text.splitlines()
    ):
        pass
    running.send(signal.SIGTERM)
    assert waiting.result(10) == []
    assert running.end() == 0
    running.ended_with_all()


def test_processes_end_with_their_parent_however_it_dies(serve: Serve) -> None:
    running, client = serve("--processes", "2")
    _pids(running, 2)
    _until_it_serves(client)
    running.send(signal.SIGKILL)
    assert running.end() == -signal.SIGKILL
    running.ended_with_all()


# --- errors at start, in one sentence


def _refused(capfd: pytest.CaptureFixture[str], code: int, *words: str) -> str:
    capfd.readouterr()
    assert call(["serve", "--log-level", "error", *words]) == code
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1), (out, err)
    assert err.startswith("headrace: ")
    return err


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_port_that_is_taken_is_reported_once(capfd: pytest.CaptureFixture[str], dsn: str, processes: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        error = _refused(capfd, 69, "--port", port, "--database", dsn, "--processes", processes)
    assert (
        error
        == f"headrace: Port {port} of 127.0.0.1 is in use. Stop the process that listens there, or give another --port.\n"
    )


def test_impossible_settings_are_reported_in_one_sentence(
    capfd: pytest.CaptureFixture[str], dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "text.pem").write_text("no certificate")
    options = ["--port", "0", "--database", dsn]
    assert "192.0.2.1 is not an address of this machine" in _refused(capfd, 69, "--host", "192.0.2.1", *options)
    assert "'no such host' can't be resolved" in _refused(capfd, 78, "--host", "no such host", *options)
    assert "Give it with --tls-cert" in _refused(capfd, 78, "--tls-key", str(tmp_path / "text.pem"), *options)
    absent = str(tmp_path / "absent.pem")
    assert f"--tls-cert {absent} can't be read: No such file" in _refused(capfd, 78, "--tls-cert", absent, *options)
    error = _refused(capfd, 78, "--tls-cert", str(tmp_path / "text.pem"), *options)
    assert "are not a certificate and its unencrypted private key in PEM" in error
    assert "is not a size" in _refused(capfd, 64, "--max-body", "large", *options)
    assert "10.0.0.1/8" in _refused(capfd, 78, "--push-allow", "10.0.0.1/8", *options)
    absent_database = "postgresql://127.0.0.1:1/x"
    assert "127.0.0.1:1" in _refused(capfd, 69, "--port", "0", "--database", absent_database)
    assert "127.0.0.1:1" in _refused(capfd, 69, "--port", "0", "--database", absent_database, "--processes", "2")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_it_does_not_open_to_the_network_without_a_token(
    capfd: pytest.CaptureFixture[str], dsn: str, processes: str
) -> None:
    error = _refused(capfd, 78, "--host", "0.0.0.0", "--port", "0", "--database", dsn, "--processes", processes)
    assert "Other machines can reach 0.0.0.0, and no token exists" in error


@pytest.mark.long
def test_it_opens_to_the_network_with_a_token_or_when_the_option_says_so(serve: Serve, dsn: str) -> None:
    _, client = serve("--host", "0.0.0.0", "--insecure")
    assert client.get("/v1/streams").status_code == 200
    token = client.post("/v1/tokens", json={"name": "me", "scopes": ["admin"]}).json()["token"]
    _, client = serve("--host", "0.0.0.0")
    assert client.get("/v1/streams").status_code == 401
    assert client.get("/metrics").status_code == 401
    assert client.get("/health").status_code == client.get("/ready").status_code == 200
    client.headers["authorization"] = f"Bearer {token}"
    assert client.get("/v1/streams").status_code == client.get("/metrics").status_code == 200


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False)]
)
def test_an_address_knows_whether_others_can_reach_it(host: str, loopback: bool) -> None:
    assert Address(host, 0).loopback is loopback


def test_an_address_that_is_closed_can_be_taken_again_at_once() -> None:
    first = Address("127.0.0.1", 0).bind()
    listen(first)
    port = first.getsockname()[1]
    with pytest.raises(ListenError):
        Address("127.0.0.1", port).bind()
    first.close()
    Address("127.0.0.1", port).bind().close()


def test_the_second_of_two_servers_that_take_an_address_at_once_reports_it() -> None:
    with Address("127.0.0.1", 0).bind() as first, Address("127.0.0.1", first.getsockname()[1]).bind() as second:
        listen(first)
        with pytest.raises(ListenError, match="is in use"):
            listen(second)


def test_a_client_that_vanished_is_noticed_by_the_kernel() -> None:
    with Address("127.0.0.1", 0).bind() as listening:
        listen(listening)
        with socket.create_connection(listening.getsockname()):
            select.select([listening], [], [], 10)
            accepted, _ = listening.accept()
            with accepted:
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


# --- TLS

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


def _certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


@needs_openssl
@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.long)])
def test_it_serves_https(serve: Serve, tmp_path: Path, processes: str) -> None:
    certificate, key = _certificate(tmp_path, "first")
    trust = ssl.create_default_context(cafile=str(certificate))
    running, client = serve(
        "--tls-cert", str(certificate), "--tls-key", str(key), "--processes", processes, verify=trust
    )
    assert client.base_url.scheme == "https"
    _until_it_serves(client)
    where = _with_orders(client)
    assert client.post("/v1/streams/orders/messages", json={"key": "a", "data": "x" * 200_000}).status_code == 200
    assert _receive(client, where)[0]["message"]["data"] == "x" * 200_000
    running.send(signal.SIGTERM)
    assert running.end() == 0


@pytest.mark.process
@needs_openssl
def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    first, _ = _certificate(tmp_path, "first")
    _, other = _certificate(tmp_path, "other")
    with pytest.raises(
        ConfigurationError, match=r"first\.crt and .*other\.key are not a certificate and its unencrypted private key"
    ):
        Certificate(first, other)


@pytest.mark.process
@needs_openssl
def test_an_encrypted_key_is_refused_without_asking(tmp_path: Path) -> None:
    certificate, key = _certificate(tmp_path, "first")
    subprocess.run(
        ["openssl", "ec", "-in", str(key), "-aes128", "-passout", "pass:secret", "-out", str(tmp_path / "locked.key")],
        check=True, capture_output=True,
    )  # fmt: skip
    with pytest.raises(ConfigurationError, match="unencrypted"):
        Certificate(certificate, tmp_path / "locked.key")


@pytest.mark.process
@needs_openssl
def test_a_certificate_that_changes_counts_for_new_connections(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = _certificate(tmp_path, "first")
    served = Certificate(certificate, key)
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.load_verify_locations(certificate)

    async def go() -> None:
        bounds = limits()
        async with listening(echo(bounds), bounds, served.context) as port:
            async with connected(port, trust) as client:
                assert (await client.ask(request(b"abc"))).body == b"3"
                assert not served.reload()
                key.write_text("half written")
                assert not served.reload()
                assert logged(caplog, "new certificate is invalid")
                second, its_key = _certificate(tmp_path, "second")
                shutil.copy(second, certificate)
                shutil.copy(its_key, key)
                assert served.reload()
                assert (await client.ask(request(b"abcd"))).body == b"4"
            with pytest.raises(ssl.SSLCertVerificationError):
                async with connected(port, trust):
                    pass
            trust.load_verify_locations(second)
            async with connected(port, trust) as client:
                assert (await client.ask(request())).body == b"0"

    asyncio.run(go())


@pytest.mark.process
@needs_openssl
def test_a_handshake_that_is_not_finished_is_given_up(tmp_path: Path) -> None:
    served = Certificate(*_certificate(tmp_path, "first"))

    async def go() -> None:
        bounds = limits(head_timeout=0.05)
        async with listening(echo(bounds), bounds, served.context) as port, connected(port) as client:
            await client.send(b"\x16\x03\x01")
            assert await client.end() == b""

    asyncio.run(go())
