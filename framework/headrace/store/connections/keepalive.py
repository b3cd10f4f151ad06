"""TCP keepalive probes and timeouts at both ends, which detect a peer that vanished silently.

A moved address or a router that lost its state leaves connections on which packets vanish, without FIN or RST.
TCP's own timeout for sent data is then 15 minutes, and there is none for a connection that only listens.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any, Final

PROBE_AFTER: Final = 2
"""Seconds without a packet after which the kernel sends a keepalive probe."""

PROBE_EVERY: Final = 2
"""Seconds between two keepalive probes without an answer."""

PROBES: Final = 4
"""The number of unanswered probes after which the kernel closes the connection, if no user timeout decides."""

CLIENT_TIMEOUT: Final = 30
"""Seconds for which sent data may stay unacknowledged, or the server may accept none, before the client's
kernel gives up. This is long, because a server that is busy with a COPY may read nothing for a while. The
failure detector is faster.
"""

SERVER_TIMEOUT: Final = 10
"""The same for the server's kernel, and its timeout for a client that is completely silent. This is shorter,
because a backend that can't send an answer, or waits for a vanished client, may hold a consumer's lock. If
a client's event loop is blocked for longer, it loses its connection only if an answer of some hundred
kilobytes is being sent to it.
"""

NOTICE_AFTER: Final = 2
"""Seconds after which a server that is busy with a statement checks whether its client is still connected."""

SERVER_SETTINGS: Final = {
    "tcp_keepalives_idle": str(PROBE_AFTER),
    "tcp_keepalives_interval": str(PROBE_EVERY),
    "tcp_keepalives_count": str(PROBES),
    "tcp_user_timeout": str(SERVER_TIMEOUT * 1000),
    "client_connection_check_interval": str(NOTICE_AFTER * 1000),
}
"""Settings of a session on the server itself. Poolers reject unknown settings at the start of a connection,
and may keep known ones for other clients.
"""

_IDLE = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))  # the second name is that of macOS
_INTERVAL, _COUNT = getattr(socket, "TCP_KEEPINTVL", None), getattr(socket, "TCP_KEEPCNT", None)
_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)  # exists on Linux only


def keep_alive(sock: Any, *, after: int = PROBE_AFTER, patience: int = CLIENT_TIMEOUT) -> None:
    """Make the kernel probe the peer of a socket, and close the connection if the peer is silent. Does nothing
    for a Unix socket.

    Connections that a listening socket accepts inherit the settings.

    Args:
        after: seconds without a packet until the first probe.
        patience: seconds for which sent data may stay unacknowledged, or the peer may be silent.
    """
    if not is_tcp(sock):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {_IDLE: after, _INTERVAL: PROBE_EVERY, _COUNT: PROBES, _USER_TIMEOUT: patience * 1000}
    for option, value in options.items():
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def is_tcp(sock: Any) -> bool:
    """Whether a socket is a TCP socket, not a Unix socket."""
    return sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6)


def quiet_for(sock: Any) -> float | None:
    """Seconds since a connection last made progress: since data arrived, or since sent data was acknowledged
    while more was outstanding.

    None if the system doesn't report it: for a Unix socket, for a closed one, and on systems other than Linux.
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
