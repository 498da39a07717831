"""What do the cache and the scheduler cost beside the model?

Questions: how long does it take to find and lease the longest stored prefix of a prompt, to store
one, to evict, and to put together and take apart a decode step?
Rival: hashed blocks of 16 tokens, as paged servers keep them; it only finds, it leases nothing.

Run as `python benchmarks/radix_cache.py`: one JSON line a case, times in microseconds.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable
from statistics import median, quantiles

import numpy as np

from lmc.params import GenParams
from lmc.runtime.engine import EngineCore
from lmc.runtime.radix_cache import RadixCache
from lmc.runtime.request import GenRequest, IntArray, KeyArray, Outcome, Step, keys_of

LENGTH = 4096  # keys of a long prompt
CHUNK = 256  # keys of a prefill chunk, so of an edge of a prompt that ran
STORED, SHARED = 256, 3072  # prompts in the cache, and keys that all of them begin with
BLOCK = 16  # tokens of a rival's block
LEAVES = 20_000  # leaves while evicting
RUNS = 300


def measure(case: str, call: Callable[[], object], runs: int = RUNS) -> None:
    """Print median and spread of `runs` calls in microseconds, after a tenth to warm up."""
    times: list[float] = []
    for _ in range(runs + runs // 10):
        start = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start) / 1000)
    p10, *_, p90 = (round(us, 1) for us in quantiles(times[-runs:], n=10))
    row = {"case": case, "median_us": round(median(times[-runs:]), 1), "p10_us": p10, "p90_us": p90}
    print(json.dumps(row | {"runs": runs, "python": platform.python_version()}))


def block_hashes(keys: KeyArray) -> list[bytes]:
    """A digest of every block of `keys` together with all that come before it."""
    digests, before = [], b""
    for start in range(0, len(keys) - BLOCK + 1, BLOCK):
        block = keys[start : start + BLOCK].tobytes()
        before = hashlib.blake2b(before + block, digest_size=8).digest()
        digests.append(before)
    return digests


def prompts(count: int) -> list[KeyArray]:
    """Prompts of `LENGTH` keys with a common beginning."""
    rng = np.random.default_rng(0)
    head = rng.integers(0, 64_000, SHARED)
    return [np.concatenate([head, rng.integers(0, 64_000, LENGTH - SHARED)]) for _ in range(count)]


def in_chunks(cache: RadixCache, keys: KeyArray, slots: IntArray) -> None:
    """Store a prompt as a chunked prefill does."""
    with cache.acquire(keys) as lease:
        for start in range(lease.length, len(keys), CHUNK):
            lease.grow(keys[start : start + CHUNK], slots[start : start + CHUNK])


def lookups() -> None:
    """Find, lease and store prompts of 4,096 keys."""
    stored = prompts(STORED)
    slots = np.arange(LENGTH, dtype=np.int32)
    whole, chunked = RadixCache(), RadixCache()
    for keys in stored:
        whole.insert(keys, slots)
        in_chunks(chunked, keys, slots)
    blocks = {digest for keys in stored for digest in block_hashes(keys)}
    keys = stored[-1]
    measure("match, whole edges", lambda: whole.match(keys))
    measure("match, chunked edges", lambda: chunked.match(keys))
    measure("match, hashed blocks", lambda: sum(h in blocks for h in block_hashes(keys)))
    measure("acquire and release, whole edges", lambda: whole.acquire(keys).release())
    measure("acquire, slots, release, chunked edges", lambda: _slots(chunked, keys))
    fresh = iter(np.random.default_rng(1).integers(0, 64_000, (RUNS * 2, LENGTH)))
    measure("insert, new", lambda: whole.insert(next(fresh), slots))
    measure("insert, held", lambda: chunked.insert(keys, slots))


def _slots(cache: RadixCache, keys: KeyArray) -> IntArray:
    with cache.acquire(keys) as lease:
        return lease.slots


def eviction() -> None:
    """Evict a leaf of 8 keys out of 20,000, and one key of a leaf."""
    cache = RadixCache()
    rng = np.random.default_rng(2)
    for _ in range(LEAVES):
        cache.insert(rng.integers(0, 64_000, 8), np.arange(8, dtype=np.int32))
    measure(f"evict 8 of {LEAVES} leaves", lambda: cache.evict(8))
    measure("evict 1", lambda: cache.evict(1))


class Still:
    """A runner that computes nothing, so that what is left is the engine's own time."""

    vocab_size = 1000
    context_length = 100_000
    kv_tokens = 200_000

    def run(self, step: Step) -> Outcome:
        count = len(step.segments)
        return Outcome((7,) * count, (-1.0,) * count, ((),) * count)

    def close(self) -> None:
        """Nothing to free."""


def steps() -> None:
    """One decode step of 32 requests with contexts of some 500 tokens."""
    core = EngineCore(Still(), [b"a"] * 1000, frozenset({0}), max_batch_tokens=256)
    rng = np.random.default_rng(3)
    for _ in range(32):
        keys = keys_of(rng.integers(1, 1000, 500), made=False)
        params = GenParams(max_tokens=50_000, stop=("zz", "\n"))
        core.submit(GenRequest(keys, params=params), lambda _: None)
    while core.stats.generated_tokens < 32 * 8:
        core.step()
    measure("decode step, 32 requests", core.step)


def main() -> None:
    lookups()
    eviction()
    steps()


if __name__ == "__main__":
    main()
