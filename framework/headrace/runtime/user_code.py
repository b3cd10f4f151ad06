"""Your code may raise any exception. One that would end the process must not leave the call that
raised it, because the same message or source would end the next process, too.
"""

from __future__ import annotations

import signal


class CodeExited(Exception):
    """Your code raised an exception that ends a program or a task, such as `SystemExit`."""


def interrupts(error: BaseException) -> bool:
    """Return whether an exception is a Ctrl-C that must end the program. While a program handles
    SIGINT in another way, only code can raise a `KeyboardInterrupt`.
    """
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
