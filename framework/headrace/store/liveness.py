"""What the operating systems at both ends do about a peer that vanished without a word: keepalive probes and timeouts of TCP.

A moved address or a router that lost its state leaves connections on which packets vanish, without FIN or RST. TCP's own patience
with that is 15 minutes for what was sent, and has no end for a connection that only listens.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any, Final

PROBE_AFTER: Final = 2
"""Seconds without a packet after which the kernel sends a keepalive probe ..."""

PROBE_EVERY: Final = 2
"""... and another one after so many seconds without an answer ..."""

PROBES: Final = 4
"""... and gives the connection up after so many, where no user timeout decides."""

OUR_PATIENCE: Final = 30
"""Seconds that sent data may stay unacknowledged, or the server may take none in, before our kernel gives up. Long, since a server that
is busy with a COPY may read nothing for a while. The failure detector is the quick one."""

SERVER_PATIENCE: Final = 10
"""The same for the server's kernel, and its patience with a client that is silent altogether. Shorter, since a backend that can't get rid
of an answer, or waits for a client that is gone, may hold a consumer's lock meanwhile. A client whose event loop is blocked for longer
loses its connection only if an answer of some hundred kilobytes is under way to it."""

NOTICE_AFTER: Final = 2
"""Seconds after which a server that is busy with a statement looks whether its client is still connected."""

SERVER_SETTINGS: Final = {
    "tcp_keepalives_idle": str(PROBE_AFTER),
    "tcp_keepalives_interval": str(PROBE_EVERY),
    "tcp_keepalives_count": str(PROBES),
    "tcp_user_timeout": str(SERVER_PATIENCE * 1000),
    "client_connection_check_interval": str(NOTICE_AFTER * 1000),
}
"""For a session on the server itself. Poolers refuse what they don't know at the start of a connection, and may keep it for others."""

_IDLE = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))  # the second is the name on macOS
_INTERVAL, _COUNT = getattr(socket, "TCP_KEEPINTVL", None), getattr(socket, "TCP_KEEPCNT", None)
_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux alone has it


def keep_alive(sock: Any, *, after: int = PROBE_AFTER, patience: int = OUR_PATIENCE) -> None:
    """Have the kernel probe the peer of a socket, and give up one that is silent. Does nothing for a Unix socket.

    A socket that listens hands the settings on to the connections that it accepts.

    Args:
        after: seconds without a packet until the first probe.
        patience: seconds that sent data may stay unacknowledged, or that a peer may be silent.
    """
    if not is_tcp(sock):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {_IDLE: after, _INTERVAL: PROBE_EVERY, _COUNT: PROBES, _USER_TIMEOUT: patience * 1000}
    for option, value in options.items():
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def is_tcp(sock: Any) -> bool:
    """Whether a socket is one of TCP, and no Unix socket."""
    return sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6)


def quiet_for(sock: Any) -> float | None:
    """Seconds since a connection last made progress: since data came in, or since sent data was acknowledged while some was left.

    None where the system doesn't say: of a Unix socket, a closed one, and except on Linux.
    """
    if sys.platform != "linux" or not is_tcp(sock):
        return None
    try:
        times = struct.unpack_from("=13I", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104), 8)
        unsent = _unsent(sock.fileno())
    except OSError:
        return None
    heard, acknowledged = times[11], times[12]  # tcpi_last_data_recv, tcpi_last_ack_recv, in milliseconds
    return float(min(heard, acknowledged) if unsent else heard) / 1000


def _unsent(descriptor: int) -> int:
    """Bytes in the send queue that the peer has not acknowledged."""
    import fcntl
    import termios

    (count,) = struct.unpack("=i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, b"\0" * 4))
    return int(count)
