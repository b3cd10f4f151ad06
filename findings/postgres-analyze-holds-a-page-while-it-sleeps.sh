#!/usr/bin/env bash
# PostgreSQL 18.4: ANALYZE with a cost delay (autovacuum's way) sleeps while it holds a lock on the page it samples.
#
# Seen:     a row of a table of one page is updated 200 times a second. Beside `analyze` with vacuum_cost_delay = 100 ms most updates
#           take 100 ms: they wait for the LWLock BufferContent, while the ANALYZE sleeps in VacuumDelay. Beside a `vacuum` with
#           the same settings, beside an `analyze` without a delay, and on PostgreSQL 16.14, no update takes even half as long.
#           With the stock autovacuum_vacuum_cost_delay of 2 ms, writers of small hot tables wait for some milliseconds
#           per autovacuum round.
# Expected: a cost delay slows the maintenance down and no writer, as on 16, where ANALYZE slept before it locked a page.
#
# Needs Python 3.11 or newer and pip, on Linux. Exits with 0 while the behaviour is as described.
. "$(dirname "$0")/postgres.sh"

cat > "$folder/compare.py" <<'PYTHON'
import sys, threading, time

from servers import connect, servers


def slow_updates(url, maintenance, delay):
    """The number of updates of 80 ms or more beside five rounds of the maintenance, and of all updates."""
    done, times = threading.Event(), []

    def update():
        with connect(url) as connection:
            while not done.is_set():
                began = time.monotonic()
                connection.execute("update counters set n = n + 1")
                times.append(1000 * (time.monotonic() - began))
                time.sleep(0.005)  # so few versions of the row at a time that the table stays a page

    with connect(url) as connection:
        connection.execute("drop table if exists counters")
        connection.execute("create table counters (n int)")
        connection.execute("insert into counters values (0)")
        connection.execute(f"set vacuum_cost_delay = {delay}")
        connection.execute("set vacuum_cost_limit = 1")
        writer = threading.Thread(target=update)
        writer.start()
        rounds = 0
        while rounds < 5 or len(times) < 200:
            connection.execute(maintenance)
            rounds += 1
        done.set()
        writer.join()
    return sum(ms >= 80 for ms in times), len(times)


as_described = True
for url in servers("autovacuum=off"):
    with connect(url) as connection:
        (version,) = connection.execute("show server_version").fetchone()
    for maintenance, delay in (("analyze", 100), ("analyze", 0), ("vacuum", 100)):
        slow, count = slow_updates(url, f"{maintenance} counters", delay)
        print(f"PostgreSQL {version}, {maintenance}, cost delay {delay} ms: {slow} of {count} updates took 80 ms or more", flush=True)
        held = (version, maintenance, delay) == ("18.4", "analyze", 100)
        as_described &= slow >= 4 if held else slow <= 1  # one, on a busy machine
sys.exit(not as_described)
PYTHON

"$folder/venv/bin/python" "$folder/compare.py" "$folder" || { echo "CHANGED: not as described"; exit 1; }
echo "As described: only ANALYZE with a cost delay on PostgreSQL 18 keeps the writer waiting."
