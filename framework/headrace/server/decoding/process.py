"""The process that decodes large bodies: `python -m headrace.server.decoding.process`.

It reads jobs from its standard input, and writes what it has decoded to its standard output, one after the other. It ends
with its standard input, and so with the server.

    job     sizes of head and body · head (MessagePack, empty for a publish request) · body
    reply   size and kind · `Incoming`, or `Refusal` (MessagePack)
"""

from __future__ import annotations

import gc
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.server.data_plane.publish_batching import Incoming
from headrace.server.decoding.jobs import DeliveryHead, decoded
from headrace.server.errors import Problem, problem_of

JOB = struct.Struct(">II")
REPLY = struct.Struct(">I?")
READY = b"\n"
"""What the process writes when it is ready."""

NICENESS = 10
"""How far the process stands back behind the server, which answers everyone else."""


class Refusal(msgspec.Struct):
    """The fields of a `Problem`."""

    status: int
    code: str
    summary: str
    validation_errors: Mapping[str, Sequence[str]] | None
    headers: Mapping[str, str]
    more: Mapping[str, Any]

    def problem(self) -> Problem:
        """Return the problem."""
        return Problem(
            self.status, self.code, self.summary, validation_errors=self.validation_errors, headers=self.headers, more=self.more,
        )  # fmt: skip


_encode = msgspec.msgpack.Encoder().encode
_decode_head = msgspec.msgpack.Decoder(DeliveryHead).decode
_decode_incoming = msgspec.msgpack.Decoder(Incoming).decode
_decode_refusal = msgspec.msgpack.Decoder(Refusal).decode


def job_of(body: bytes, head: DeliveryHead | None) -> bytes:
    """Return what precedes a body in a job."""
    encoded = b"" if head is None else _encode(head)
    return JOB.pack(len(encoded), len(body)) + encoded


def result_of(reply: bytes, *, refused: bool) -> Incoming:
    """Return what a reply contains. Raises a `Problem` if the body was refused."""
    if refused:
        raise _decode_refusal(reply).problem()
    return _decode_incoming(reply)


def _reply_to(head: bytes, body: bytes) -> tuple[bytes, bool]:
    try:
        return _encode(decoded(body, _decode_head(head) if head else None)), False
    except Exception as error:
        problem = problem_of(error)
        refusal = Refusal(
            problem.status, problem.code, str(problem), problem.validation_errors, problem.headers, problem.more
        )
        return _encode(refusal), True


def main() -> None:
    """Decode bodies until the standard input ends."""
    gc.disable()  # bodies have no cycles, and looking for some takes as long as decoding
    os.nice(NICENESS)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sink.write(READY)
    sink.flush()
    while sizes := source.read(JOB.size):
        head_size, body_size = JOB.unpack(sizes)
        reply, refused = _reply_to(source.read(head_size), source.read(body_size))
        sink.write(REPLY.pack(len(reply), refused))
        sink.write(reply)
        sink.flush()


if __name__ == "__main__":
    main()
