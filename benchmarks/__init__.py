"""Benchmarks of Headrace, each beside the raw limit of Postgres: `python -m benchmarks list`.

__main__    the command line
suite/      one module per benchmark
harness     a fresh database for every repeat, and the options
payloads    the messages and their keys
limits      the raw limits: a bare multi-row insert, a bare cursor read
publishing  publishers at a fixed rate, or as fast as the worker follows
captured    captured tables and the progress of the capture
crew        a worker process, controlled from the benchmark
worker      the program of the worker process
checks      nothing lost, doubled or out of order, or the benchmark fails
timing      medians, percentiles, windows
facts       machine, versions, settings
report      the table and the JSON
"""
