"""Memory for vectors that a driver and the processes on its machine share: one nameless file, in blocks.

The file (memfd) has no name, so nothing is left of it when the processes have ended, however they end. It is
as long as the machine has memory and takes only what was written to, so it never has to grow.
"""

from __future__ import annotations

import mmap
import os
import weakref

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_PAGE = mmap.PAGESIZE


class Arena:
    """The driver's end: gives out blocks, and takes each back when the last array that shows it is gone.

    Blocks are used again and again, as the first touch of memory costs more than a copy into it. Raises
    OSError where there are no nameless files.
    """

    def __init__(self) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memfd_create")
        self.size = _PAGE * os.sysconf("SC_PHYS_PAGES")
        self.descriptor = os.memfd_create("dsgd-vectors", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self.descriptor, self.size)
            self._memory = mmap.mmap(self.descriptor, self.size)
        except BaseException:
            os.close(self.descriptor)
            raise
        self._address = np.frombuffer(self._memory, np.uint8).__array_interface__["data"][0]
        self._end = 0  # of the blocks that were ever given out
        self._free: dict[int, list[int]] = {}  # by size: where they begin
        self._closed = False

    def block(self, num_bytes: int) -> Bytes:
        """Return a block of so many bytes, with any content, which begins with a page.

        Raises MemoryError if all of the machine's memory is given out.
        """
        size = rounded(num_bytes)
        free = self._free.setdefault(size, [])
        if free:
            start = free.pop()
        elif self._end + size > self.size:
            raise MemoryError(
                f"{self._end:,} bytes of vectors are in use, and {num_bytes:,} more are asked for"
            )
        else:
            start, self._end = self._end, self._end + size
        shown = np.frombuffer(self._memory, np.uint8, num_bytes, start)
        # Called when nothing refers to `shown` any more, nor any other array that has been made of it.
        weakref.finalize(shown, self._take_back, start, size).atexit = False
        return shown

    def where(self, array: NDArray[np.float32] | Bytes) -> int:
        """Return how many bytes from the start of the file an array begins that it holds."""
        start: int = array.__array_interface__["data"][0] - self._address
        return start

    def holds(self, array: NDArray[np.float32] | Bytes) -> bool:
        """Whether an array lies in a block, without gaps."""
        return 0 <= self.where(array) < self.size and array.flags.c_contiguous

    def close(self) -> None:
        """Give back the memory of all blocks that nobody uses, and that of the others once nobody does."""
        if not self._closed:
            self._closed = True
            os.close(self.descriptor)
            for size, free in self._free.items():
                while free:
                    self._take_back(free.pop(), size)

    def _take_back(self, start: int, size: int) -> None:
        if self._closed:
            self._memory.madvise(mmap.MADV_REMOVE, start, size)
        else:
            self._free[size].append(start)


class ArenaView:
    """Another process's end: the same memory. The descriptor is closed."""

    def __init__(self, descriptor: int, size: int) -> None:
        try:
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def show(self, start: int, num_bytes: int) -> Bytes:
        """Return the block that begins there."""
        return np.frombuffer(self._memory, np.uint8, num_bytes, start)


def rounded(num_bytes: int) -> int:
    """Return the size of a block for so many bytes: at most an eighth more, in whole pages, so that there are
    few different sizes.
    """
    step = max(_PAGE, 1 << max(0, num_bytes.bit_length() - 4))
    return -(-num_bytes // step) * step
