"""How a process of Ray learns that it is asked to end (SIGTERM), as a spot instance is before it is taken."""

from __future__ import annotations

import os
import select
import signal


class EndNotice:
    """Has this process survive the signal, and ends the wait for it.

    Ray makes actors in the main thread, which then no longer runs Python: a handler would never be called
    there, but the number of the signal is written to this pipe at once.
    """

    def __init__(self) -> None:
        self._notice, self._notified = os.pipe()
        os.set_blocking(self._notified, False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(self._notified)

    def wait(self) -> None:
        """Return once the signal has come."""
        while select.select([self._notice], [], [], None)[0]:
            if os.read(self._notice, 1) == bytes([signal.SIGTERM]):
                return

    def pass_on(self) -> None:
        """Have `wait` return, as if the signal had come here."""
        os.write(self._notified, bytes([signal.SIGTERM]))
