"""When tables of token classes are made: beside the work, for constraints that many requests have.

Owns        one thread, while there are tables to be made; and what is still to be made.
Promises    nobody waits for a table: until one is there, masks are used. A constraint that has none
            (too many classes, or too many others before it) goes on with masks.
Costs       a table: a fifth of a second at most of one thread, for a vocabulary of 128,000 tokens;
            most of it without Python's lock.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from typing import TYPE_CHECKING

from lmc.constraints.budget import BudgetError
from lmc.constraints.token_classes import token_classes

if TYPE_CHECKING:
    from lmc.constraints.machine import Machine
    from lmc.constraints.tables import TokenTable

__all__ = ["WORTHWHILE", "tabulate", "want_table"]

_log = logging.getLogger("lmc.constraints")

WORTHWHILE = 8
"""Requests with a constraint from which on a table is made: it costs as much as many masks."""

_MOST_WAITING = 64  # tables

_waiting: queue.Queue[tuple[weakref.ref[Machine], weakref.ref[TokenTable]]] = queue.Queue(
    _MOST_WAITING
)
_lock = threading.Lock()
_thread: list[threading.Thread] = []  # the one that works, if one does


def want_table(machine: Machine, table: TokenTable) -> None:
    """Have `table.classes` made, once it was wanted often enough."""
    table.wanted += 1
    if table.wanted != WORTHWHILE:
        return
    with _lock:
        try:
            _waiting.put_nowait((weakref.ref(machine), weakref.ref(table)))
        except queue.Full:
            table.wanted = 0  # later, perhaps
            return
        if not _thread:
            _thread.append(threading.Thread(target=_work, name="lmc-tables"))
            _thread[0].start()


def tabulate(machine: Machine, table: TokenTable) -> None:
    """Make `table.classes` now, if there can be any."""
    if table.speller is not None or table.classes is not None:
        return
    try:
        table.classes = token_classes(machine, table.vocabulary, lambda at: table.forced(at, None))
    except BudgetError as error:
        _log.info("no table: %s", error)


def _work() -> None:
    while True:
        with _lock:
            if _waiting.empty():
                _thread.clear()
                return
            machine_of, table_of = _waiting.get_nowait()
        machine, table = machine_of(), table_of()
        if machine is None or table is None:
            continue
        try:
            tabulate(machine, table)
        except Exception:  # masks do without
            _log.exception("a table could not be made")
        del machine, table
