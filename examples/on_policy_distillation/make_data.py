"""Write the prompts (`reverse 493817`) and what both models learn from first: `718394`.

Three sets without a common number: `train.parquet`, `heldout.parquet` and `sft.parquet`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

DIGITS = 6
ROWS = {"heldout": 256, "train": 4096, "sft": 8192}


def make_data(directory: str | Path, *, seed: int = 0) -> dict[str, Path]:
    """Write the three files; the same seed gives the same rows.

    Returns:
        The path of each split.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    numbers = iter(random.Random(seed).sample(range(10**DIGITS), sum(ROWS.values())))
    paths = {}
    for split, rows in ROWS.items():
        paths[split] = directory / f"{split}.parquet"
        table = [_row(f"{next(numbers):0{DIGITS}}") for _ in range(rows)]
        pq.write_table(pa.Table.from_pylist(table), paths[split])
    return paths


def _row(number: str) -> dict[str, Any]:
    prompt = [{"role": "user", "content": f"reverse {number}"}]
    return {"prompt": prompt, "label": number[::-1], "metadata": json.dumps({})}
