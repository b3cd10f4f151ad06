"""Checks that a cluster or a Connect server is reachable, with a short timeout.

Spark itself tries for a minute to reach a master, and its Connect client for ten minutes.
"""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

from headrace_spark.session.errors import SparkMisconfigured, SparkUnavailable
from headrace_spark.session.settings import START_TIMEOUT, without_token

TIMEOUT = 5.0  # seconds
_CONNECT_PORT = 15002
_RETRIES = {"max_retries": 3, "initial_backoff": 200, "max_backoff": 1000}


def check_cluster(master: str, *, timeout: float = TIMEOUT) -> None:
    """Check that a master with an address is reachable within `timeout` seconds. Raises `SparkUnavailable`
    if nothing listens there."""
    if (error_text := _problem_of_master(master, timeout)) is not None:
        raise SparkUnavailable(f"The Spark master {master} can't be reached: {error_text}.")


def state_of_master(master: str, *, timeout: float = TIMEOUT) -> str:
    """What a master that has not started an application in time does, as the end of a sentence."""
    problem = _problem_of_master(master, timeout)
    return "it accepts connections, and has not started it" if problem is None else f"it can't be reached, {problem}"


def _problem_of_master(master: str, timeout: float) -> str | None:
    """Why none of the addresses of a master can be reached, or None. One without an address counts as reachable."""
    if master.startswith("spark://"):
        addresses = [_split(one) for one in master.removeprefix("spark://").split(",")]
    elif master.startswith("k8s://"):
        url = master.removeprefix("k8s://")
        parts = urlsplit(url if "://" in url else f"https://{url}")
        addresses = [(parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443))]
    else:
        return None
    errors = [_connect_error(host, port, timeout) for host, port in addresses]
    return None if None in errors else errors[0]


def check_server(remote: str, *, timeout: float = TIMEOUT, answer_timeout: float = START_TIMEOUT) -> None:
    """Check a Spark Connect server.

    Args:
        remote: its URL.
        timeout: seconds that it has to accept a connection.
        answer_timeout: seconds that it has to answer. A cloud may start a cluster first.

    Raises:
        SparkUnavailable: there is none, it does not answer in time, or it refuses the client.
    """
    import grpc  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException
    from pyspark.sql.connect.client import SparkConnectClient
    from pyspark.sql.connect.client.core import DefaultChannelBuilder, RpcDeadlines

    shown = without_token(remote)
    try:
        builder = DefaultChannelBuilder(remote)
    except PySparkException as error:
        raise SparkMisconfigured(f"The Spark Connect server {shown!r} is invalid: {_first_line(error)}.") from error
    host, port = _split(builder.endpoint, _CONNECT_PORT)
    if (error_text := _connect_error(host, port, timeout)) is not None:
        raise SparkUnavailable(f"The Spark Connect server {shown} can't be reached: {error_text}.")
    deadlines = RpcDeadlines(analyze_plan=answer_timeout, release_session=answer_timeout)
    client = SparkConnectClient(builder, retry_policy=_RETRIES, rpc_deadlines=deadlines)
    try:
        grpc.channel_ready_future(client._channel).result(timeout)
        client._analyze("spark_version")
        client.release_session()
    except grpc.FutureTimeoutError as error:
        raise SparkUnavailable(
            f"The program at {shown} does not answer as a Spark Connect server. Check the address."
        ) from error
    except (PySparkException, grpc.RpcError) as error:
        late = grpc.StatusCode.DEADLINE_EXCEEDED
        if isinstance(error, SparkConnectGrpcException) and error.getGrpcStatusCode() == late:
            raise SparkUnavailable(
                f"The Spark Connect server {shown} accepts calls, and has not answered within {answer_timeout:g} s. Check the server, or raise"
                " start_timeout (HEADRACE_SPARK_START_TIMEOUT)."
            ) from error
        raise SparkUnavailable(f"The Spark Connect server {shown} refuses the client: {_first_line(error)}.") from error
    finally:
        client.close()


def _split(address: str, port: int = 0) -> tuple[str, int]:
    found = re.fullmatch(r"\[?([^\]]*?)\]?(?::(\d+))?", address)
    return (found[1], int(found[2] or port)) if found else (address, port)


def _connect_error(host: str, port: int, timeout: float) -> str | None:
    """The reason why an address can't be reached, or None if something listens there."""
    try:
        socket.create_connection((host, port), timeout=timeout).close()
    except TimeoutError:
        return f"{host}:{port} doesn't answer within {timeout:g} s"
    except OSError as error:
        return f"{host}:{port}: {(error.strerror or str(error)).lower()}"
    return None


def _first_line(error: Exception) -> str:
    details = getattr(error, "details", None)
    text = (details() if callable(details) else None) or str(error)
    return (text.strip().splitlines() or ["no reason is given"])[0].rstrip(".")
