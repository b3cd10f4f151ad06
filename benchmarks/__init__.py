"""Measurements of Headrace, each beside the raw limit that Postgres sets: `python -m benchmarks list`.

__main__    the command line
suite/      one module per benchmark
harness     a fresh database for every repeat; what was asked for
payloads    the messages, and which key each has
limits      the raw limits: a bare multi-row insert, a bare cursor read
publishing  publishers: at a pace, or as fast as the worker follows
captured    tables that are captured, and how far that is
crew        a worker process, seen from here
worker      ... and from inside
checks      nothing lost, doubled or out of order, or the benchmark fails
timing      medians, percentiles, windows
facts       machine, versions, settings
report      the table and the JSON
"""
