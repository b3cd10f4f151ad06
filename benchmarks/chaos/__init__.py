"""Faults on purpose, beside a steady load: `python -m benchmarks chaos`.

Each scenario has a baseline, a fault and a recovery in one run. Worker processes run an App with two consumers, and a
publisher keeps a pace below their capacity.

command     the command line
scenarios   the scenarios, by name
faults      what each scenario does to the site
grounds     the servers, disks, clocks, proxies and poolers that a scenario needs
site        the processes of a run, from the baseline to the end
worker      the program of the worker processes and of the publisher
traces      the files in which these processes record what they did
ledger      judges what was handled: lost, doubled, out of order
recovery    the rates before and after a fault, and the seconds until the work is back
report      the table and the JSON

Servers and proxies are those of the tests (`tests.torture.promises.nodes`, `tests.support.silence`).
"""
