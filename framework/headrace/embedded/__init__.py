"""Postgres from a wheel: nothing to install, nothing to administer, and nothing lost.

    with EmbeddedPostgres().acquire() as handle:
        connection = await asyncpg.connect(handle.url)

The first process that acquires makes the data directory and starts the server. Other processes that
name the same directory share it. The last one to release stops it. Killing any of them does not
affect the others. After an explicit `start()` it runs until `stop()`.

The steps of an acquire, and the modules in that order:

    paths           paths of the data directory, the socket, the lock files and the log
    os_user         the user that runs the server (for root, another one)
    locks           one process at a time starts or stops the server
    users           registers this process as a user, with a lock that the kernel frees when it dies
    postmaster      finds out whether the server is down, changing or ready
    startup         starts the server if it is down:
      binaries        finds Postgres's programs: a setting, the wheel, the system
      program_copies  copies them if the server's user can't read their directory
      cluster         makes the data directory if there is none, and writes the settings
    postgres        the public interface
    errors          error messages
"""

from headrace.embedded.paths import default_data_dir
from headrace.embedded.postgres import EmbeddedPostgres, Status
from headrace.embedded.users import ServerHandle

__all__ = ["EmbeddedPostgres", "ServerHandle", "Status", "default_data_dir"]
