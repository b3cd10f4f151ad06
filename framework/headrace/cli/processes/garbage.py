"""The garbage collector of a process that handles messages."""

from __future__ import annotations

import gc

YOUNG = 3000
"""Number of new objects after which the collector looks at them. By default it is 700 in Python 3.11, and a worker with traces
makes that many for a few messages. Much larger numbers gain nothing more: what waits to be collected leaves the caches."""


def spare_what_exists(young: int = YOUNG, *older: int) -> None:
    """Keep the collector from what exists now, and let it look at new objects less often. A higher setting of the
    program stays, as well as 0, which turns it off.

    Args:
        young: number of new objects after which it looks at them.
        older: the thresholds of the older generations. They stay if none is given.
    """
    gc.freeze()
    present = gc.get_threshold()
    if 0 < present[0] < young:
        gc.set_threshold(young, *(older or present[1:]))
