"""A device that has no memory for a step: how that is told, and how the sizes of steps follow.

Owns        the greatest number of tokens that a step may have now.
Promises    after each failure the next step is at most half as large, down to one token; what has
            gone well for a while may grow again, so that another program's hunger is survived, too.
Not here    whose requests are put back (`scheduler`), what a device frees (its runner).
"""

from __future__ import annotations

from lmc.errors import RunError

__all__ = ["DeviceMemoryError", "StepRoom", "is_out_of_memory"]

FIRST_PATIENCE = 16  # steps that go well before larger ones are tried again
MOST_PATIENCE = 4096
_PHRASES = ("out of memory", "ALLOC_FAILED", "can't allocate memory")  # CUDA, cuBLAS, the CPU's


class DeviceMemoryError(RunError):
    """There was no memory for a step. Raised by a runner that can try the same rows again."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was short; libraries say so by various exceptions, torch's own among them.

    An exception that came of cleaning up after such a one counts as well.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, (RuntimeError, MemoryError)):
            said = str(cause)
            named = isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError"
            if named or any(phrase in said for phrase in _PHRASES):
                return True
        cause = cause.__context__
    return False


class StepRoom:
    """How many tokens a step may have.

    Attributes:
        most: if memory is not short.
        tokens: now.
    """

    def __init__(self, most: int) -> None:
        self.most = self.tokens = most
        self._patience = FIRST_PATIENCE
        self._left = 0  # steps until larger ones are tried; above 0 while memory is short

    @property
    def short(self) -> bool:
        """Whether memory was short not long ago: then steps are neither repeated nor overlapped."""
        return self._left > 0

    def shrink(self, rows: int, repeats: int) -> None:
        """A step was too large; one that was repeated is tried by itself first."""
        if repeats == 1:
            self.tokens = max(1, min(self.tokens, rows // 2))
        self._left = self._patience
        self._patience = min(2 * self._patience, MOST_PATIENCE)

    def went_well(self) -> None:
        """A step was computed."""
        if self._left:
            self._left -= 1
            if not self._left and self.tokens < self.most:
                self.tokens = min(2 * self.tokens, self.most)
                self._left = FIRST_PATIENCE if self.tokens < self.most else 0

    def restore(self) -> None:
        """What was too large has gone."""
        self.tokens, self._left = self.most, 0
