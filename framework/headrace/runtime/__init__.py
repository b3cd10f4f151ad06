"""Motion: what one consumer does in one process. One file is one actor is one loop, and a message travels so:

    store.lease ─▶ fetcher ─▶ lanes ─▶ actors ─▶ singles | batches ─▶ handlers ─▶ desk ─▶ settler ─▶ store.settle

Beside the way stand the `keeper`, who extends leases, the `scaler`, who changes the number of actors, and the `guard`, who pauses when
all fails. `pipeline` wires them in this order (what they know of each other is in `wiring`, what consumers share in `shared`),
`drain` takes them down in it, and `weather` lets each go on when the database comes back. `handlers` is what is around the user's function.

The decisions are made in `headrace.flow`, in plain code; what is here waits and acts.
"""
