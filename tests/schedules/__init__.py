"""Schedules of the store's functions, explored by machine.

The bodies of the functions get a gate between their statements (`rewrite.py`, `gate.sql`). A session stops at the gates
that a schedule names, and the scheduler (`schedules.py`) decides which session continues. `explore.py` generates
schedules, `operations.py` and `operators.py` have the operations that run against each other, `scenarios.py` the states that they start from,
and `invariants.py` decides whether the promises hold afterwards. `planted.py` has bugs that the explorer must find.
"""
