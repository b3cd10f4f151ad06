"""The test kit: an app's handlers on the real engine, in a database of their own, with the time in the test's hands.

    async with Harness(app) as harness:
        await harness.publish("orders", "orders.us.1", {"id": 1})
        await harness.drain()                    # everything that is due is leased, handled and settled
        await harness.advance("30s")             # retries, delays and leases fall due; nothing waits for it
        await harness.drain()
        assert harness.kinds("ship") == ["retried", "acked"]

Nothing is imitated: the store is Postgres, and the service is the one that `headrace run` runs. Three things are different. Its
clocks stand still until the test moves them; it can die between a handler's effect and the ack; and what becomes of every
delivery is noted.

The files, from the ground up:

    databases   a server for the run, and a database for each test, cloned from a template
    clock       the time
    outcomes    what became of each delivery
    worker      the service from its start to its end, or to its crash
    harness     what a test holds in its hands
    plugin      pytest's fixtures, for pytest-asyncio and for anyio: pytest_plugins = ["headrace.testing.plugin"]
"""

from headrace.testing.clock import Clock
from headrace.testing.databases import Server, server
from headrace.testing.harness import Harness, NotDrained
from headrace.testing.outcomes import Kind, Outcome

__all__ = ["Clock", "Harness", "Kind", "NotDrained", "Outcome", "Server", "server"]
