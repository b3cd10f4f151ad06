"""Headrace beside other systems, in one harness: `python -m benchmarks peers`.

command     the command line
catalog     the peers: versions, promises, and the jobs that they can't do
installing  the peers' packages, each in a directory of its own below `.bench/`
jobs        the jobs
runs        a run: its servers, its processes, and what is read of them
measuring   one run of each kind of job, and what it found
comparing   all runs, interleaved, with a limit of time for each
servers     Postgres, Redis and NATS
children    the processes of a peer
readings    processor time, WAL, commits, dead rows, and the processor time of others
judging     lost, doubled and out of order
results     medians, tables and JSON
chart       the figures as SVG
schedules   small schedules that show what each peer does with a fault
looking     runs the schedules, and the table of what was seen
process/    the process of a peer
adapters/   one module per peer, which that process imports
"""
