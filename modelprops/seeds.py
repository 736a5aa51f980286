"""One tree of seeds: base seed -> test -> measure -> chunk. Stable across processes, orders and platforms."""

from __future__ import annotations

import hashlib


def derive(seed: int, *path: str | int) -> int:
    """Return the 63-bit seed at `path` below `seed`.

    Unlike `hash()` it is the same in every process, so a test draws the same inputs under any xdist split.
    """
    text = "\x1f".join([str(seed), *map(str, path)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
