"""The parts of a worker process. A message passes through the rooms in this order:

    store.lease ─▶ leasing ─▶ pipeline ─▶ lanes ─▶ execution ─▶ handlers ─▶ settling ─▶ store.settle
                              (fetcher)  (by key)  (actors)    (your code) (acknowledger, settler)

`pipeline` makes the parts of one consumer, leases messages and scales the actors. `execution` runs
actors and judges the outcomes of handlers. `handlers` has everything around your function.
`settling` writes outcomes, and extends leases until then. `leasing` makes the lease calls, and waits
between them. `messages` has what handlers receive and use. `maintenance` is background work for the
database.

The decisions are made in `headrace.flow`, in plain synchronous code. This package does the waiting
and the I/O.

No task, cancel scope or lock is made per message. An actor is one long-lived task, an outcome is an append to a list, and
timeouts are watched from outside of the handlers.
"""
