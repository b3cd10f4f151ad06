"""A sweep over every message of the Postgres protocol in a scenario: `python -m tests.sweep`.

A proxy counts the messages of all connections, in both directions. For each of them the scenario runs once more, and that
message is met by a fault. Then everything must complete: 0 lost, 0 out of order, 0 effects doubled.

    proxy     counts messages, and meets one of them with a fault
    scenario  what runs, and what must be true afterwards
    sweep     every message and every fault, one after the other
"""
