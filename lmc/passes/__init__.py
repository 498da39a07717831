"""The optimizer. To add a pass, write a file here and add its class to `PASSES`."""

from lmc.passes.base import Pass
from lmc.passes.canonicalize import Canonicalize
from lmc.passes.chain_gens import ChainGens
from lmc.passes.cse import CSE
from lmc.passes.dce import DCE
from lmc.passes.hoist_prefix import HoistPrefix
from lmc.passes.kv_liveness import KVLiveness
from lmc.passes.prefetch_branches import PrefetchBranches
from lmc.passes.reorder_unordered import ReorderUnordered
from lmc.passes.schedule_dfs import ScheduleDFS
from lmc.passes.specialize import Specialize

__all__ = ["PASSES", "PIPELINES"]

PASSES: tuple[type[Pass], ...] = (
    Specialize,
    ReorderUnordered,
    Canonicalize,
    CSE,
    DCE,
    HoistPrefix,
    ChainGens,
    PrefetchBranches,
    ScheduleDFS,
    KVLiveness,
)

_LEVEL_1: tuple[Pass, ...] = (Specialize(), Canonicalize(), CSE(), DCE())
_SHARING: tuple[Pass, ...] = (*_LEVEL_1, HoistPrefix(), ChainGens())
_ORDER: tuple[Pass, ...] = (ScheduleDFS(), KVLiveness())
_LEVEL_2 = (*_SHARING, *_ORDER)
_LEVEL_3 = (*_SHARING, PrefetchBranches(), *_ORDER)

PIPELINES: dict[int, tuple[Pass, ...]] = {0: (), 1: _LEVEL_1, 2: _LEVEL_2, 3: _LEVEL_3}
"""The passes of each optimization level. `ReorderUnordered` is in none: it changes prompts."""
