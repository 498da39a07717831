"""Where a text ends at a stop, by the plain definition."""

from __future__ import annotations

import re
from collections.abc import Sequence


def first_stop(
    text: str, strings: Sequence[str] = (), patterns: Sequence[str] = ()
) -> tuple[int, str, int] | None:
    """Where the text is cut, at which stop, and how much of it was read until then."""
    stops = [re.escape(s) for s in strings] + list(patterns)
    names = [*strings, *patterns]
    for end in range(len(text) + 1):
        found = [(m.start(), n) for n, s in enumerate(stops) if (m := re.search(s, text[:end]))]
        if found:
            begin, which = min(found)
            return begin, names[which], end
    return None
