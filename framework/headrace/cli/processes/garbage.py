"""The garbage collector of a process that handles messages."""

from __future__ import annotations

import gc

YOUNG = 3000
"""Number of new objects after which the collector looks at them. By default it is 700 in Python 3.11, and a worker with traces
makes that many for a few messages. Much larger numbers gain nothing more: what waits to be collected leaves the caches."""


def spare_what_exists() -> None:
    """Keep the collector from what exists now, and let it look at new objects less often. A setting of yours that is
    higher stays, as well as 0, which turns it off."""
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < YOUNG:
        gc.set_threshold(YOUNG, *older)
