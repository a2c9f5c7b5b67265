"""How long to wait before trying again: longer each time, and at random, so that a crowd spreads."""

from __future__ import annotations

import random
from typing import Final

FIRST_SECONDS: Final = 0.2
LONGEST_SECONDS: Final = 10.0


def pause_before(tries: int) -> float:
    """Seconds to wait when ``tries`` tries in a row have failed."""
    if tries <= 0:
        return 0.0
    longest = min(FIRST_SECONDS * 2.0 ** min(tries - 1, 30), LONGEST_SECONDS)
    return random.uniform(longest / 2, longest)
