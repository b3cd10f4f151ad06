"""The test kit: runs an app's handlers on a real Postgres, with a database per test and a clock that the test
controls.

    async with Harness(app) as harness:
        await harness.publish("orders", "orders.us.1", {"id": 1})
        await harness.drain()                    # lease, handle and settle everything that is due
        await harness.advance("30s")             # retries, delays and leases fall due, without waiting
        await harness.drain()
        assert harness.kinds("ship") == ["retried", "acked"]

There are no mocks: the store is Postgres, and the service is the one that `headrace run` runs. Three things
are different. Its clocks stand still until the test moves them. It can crash between a handler's effect and
the ack. The outcome of every delivery is recorded.

The files, from the ground up:

    databases   a server for the run, and a database for each test, cloned from a template
    clock       the time
    outcomes    the outcome of each delivery
    worker      the service from its start to its end or its crash
    harness     the object that a test uses
    plugin      pytest's fixtures, for pytest-asyncio and for anyio: pytest_plugins = ["headrace.testing.plugin"]
"""

from headrace.testing.clock import Clock
from headrace.testing.databases import Server, server
from headrace.testing.harness import Harness, NotDrained
from headrace.testing.outcomes import Kind, Outcome

__all__ = ["Clock", "Harness", "Kind", "NotDrained", "Outcome", "Server", "server"]
