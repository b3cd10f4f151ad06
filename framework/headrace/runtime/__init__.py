"""The runtime of a consumer in one process. Each part is one file, mostly with one loop. A message
passes through them in this order:

    store.lease ─▶ fetcher ─▶ lanes ─▶ actors ─▶ singles | batches ─▶ handlers ─▶ desk ─▶ settler ─▶ store.settle

The `desk` is the acknowledger. The `keeper` extends leases, the `scaler` changes the number of
actors, and the `guard` is the circuit breaker, which pauses the consumer while handlers fail.
`pipeline` wires the parts in this order. `wiring` holds the interfaces between them, and `shared`
holds what the consumers of a process share. `drain` stops the parts in the same order. `weather` is
the database retry. `handlers` holds everything around your function.

The decisions are made in `headrace.flow`, in plain synchronous code. This package does the waiting
and the I/O.
"""
