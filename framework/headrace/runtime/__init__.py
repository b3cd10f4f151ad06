"""Motion: what one consumer does in one process. One file is one actor is one loop, and a message travels so:

    store.lease ─▶ fetcher ─▶ lanes ─▶ actors ─▶ handler ─▶ desk ─▶ settler ─▶ store.settle

Beside the way stand the `keeper`, who extends leases, and the `scaler`, who changes the number of actors. `pipeline` wires them
in this order (what they know of each other is in `wiring`), `drain` takes them down in it, and `weather` lets each go on when the
database comes back.

The decisions are made in `headrace.flow`, in plain code; what is here waits and acts.
"""
