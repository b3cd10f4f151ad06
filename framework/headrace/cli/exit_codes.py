"""The exit codes of commands, most of them from BSD's `sysexits.h`."""

from __future__ import annotations

NOT_DONE = 1
"""A command did not do everything that it was to do, and there was no error."""

USAGE = 64
"""EX_USAGE: the command line is invalid."""

NO_INPUT = 66
"""EX_NOINPUT: a file doesn't exist or can't be read."""

CANNOT_CREATE = 73
"""EX_CANTCREAT: a file or directory can't be created."""

DISK_FULL = 74
"""EX_IOERR: the disk or the stream is full."""

INTERRUPTED = 130
"""128 + SIGINT, the convention of shells."""

PIPE_CLOSED = 141
"""128 + SIGPIPE"""

DESCRIPTION = """\
Exit codes:
   0  success
   1  nothing was done, or not everything: there was no message to receive, an
      ack was too late, or the answer to a question was no
  64  the command line is invalid
  65  a value is invalid: a key, a condition, data or a position
  66  a stream, consumer, source, token, context or file doesn't exist
  69  the database or the server can't be reached or is not available, so try
      again
  73  a file or directory can't be created
  74  the disk or the stream is full
  75  it is in use, so use --force or try again later, or the server is
      overloaded
  78  the configuration is invalid: settings that contradict each other, a
      database without a schema, or a token that is not accepted
 130  Ctrl-C"""
