"""What a program of ours keeps while it runs is not looked at by Python's garbage collections.

Modules of torch and transformers, a model and its tokenizer are 200,000 to a million objects, and a
full collection looks at each, which takes 0.1 to 0.3 s in which no step begins. While modules are
imported nearly all that is made stays, and looking for garbage every 700 objects is a tenth of the
start of `lmc run`.

Not here    programs of others that use lmc as a library: what is garbage there is not ours to say.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["rare_collections", "spared_collections"]

_NEW = 10_000  # objects made between two collections of the youngest


def rare_collections() -> None:
    """Collect more rarely from now on, at the start of a process of ours."""
    gc.set_threshold(_NEW, *gc.get_threshold()[1:])


@contextlib.contextmanager
def spared_collections() -> Iterator[None]:
    """Keep all there is at the beginning, less what is garbage already, out of collections."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
