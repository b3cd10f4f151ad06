"""Headrace beside other systems, in one harness: `python -m benchmarks peers`.

command     the command line
catalog     the peers: versions, promises, and the jobs that they can't do
installing  the peers' packages, each in a directory of its own below `.bench/`
jobs        the jobs
runs        one run of a job with one peer
comparing   all runs, interleaved, with a limit of time for each
servers     Postgres, Redis and NATS
children    the processes of a peer
readings    processor time, WAL, commits, dead rows, and the processor time of others
judging     lost, doubled and out of order
results     medians, tables and JSON
chart       the figures as SVG
schedules   small schedules that show what each peer does with a fault
adapters/   one module per peer, run in the peer's own environment
"""
