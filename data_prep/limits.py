"""How much of one thing is read before it is called hostile, and how much is held at once.

Real training data stay far below all of these; a file that exceeds one was damaged or made to exhaust memory.
"""

from __future__ import annotations

MIB = 1 << 20

BATCH_BYTES = 32 * MIB
"""Rows are read in batches of about this size."""

BATCH_ROWS = 8192
"""And of at most this many rows."""

GROUP_ROWS = 8192
"""Rows of one row group of a written file."""

GROUP_BYTES = 128 * MIB
"""A row group ends earlier when its rows hold this much."""

CELL_BYTES = 64 * MIB
"""Longest text, JSON line or media item."""

EXPANSION = 1000
"""A compressed file may hold at most so many times its size, once that is more than `EXPANSION_FREE`."""

EXPANSION_FREE = 1024 * MIB

IMAGE_PIXELS = 178_956_970
"""Largest image, in pixels: twice what Pillow warns of, which is where Pillow refuses to decode."""
