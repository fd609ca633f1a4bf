"""Conversion of a file larger than memory should be asked for: peak memory and time, for Parquet and for JSON lines.

    python benchmarks/data_large.py                # 10 GB each; needs three times that on disk

Texts are random letters, so that the file is large on disk and not only when it is decompressed. Results:
benchmarks/results/data_large.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
KINDS = (".parquet", ".jsonl")
PROMPT, ANSWER = 4_000, 6_000
BATCH = 2_000
_LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 .", np.uint8)


def batches(size: int) -> Iterator[list[dict[str, Any]]]:
    """verl rows of 10 kB, until they are `size` bytes."""
    rng = np.random.default_rng(0)
    for start in range(0, size // (PROMPT + ANSWER), BATCH):
        text = _LETTERS[rng.integers(0, 64, BATCH * (PROMPT + ANSWER), np.uint8)].tobytes().decode()
        yield [_row(start + row, text[row * (PROMPT + ANSWER) :][: PROMPT + ANSWER]) for row in range(BATCH)]


def _row(number: int, text: str) -> dict[str, Any]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"Q{text[:PROMPT]}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(number)},
        "extra_info": {"split": "train", "index": number, "answer": text[PROMPT:]},
    }


def make(path: Path, size: int) -> None:
    """The rows as one file."""
    if path.suffix == ".jsonl":
        with path.open("w") as stream:
            for rows in batches(size):
                stream.writelines(json.dumps(row) + "\n" for row in rows)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    for rows in batches(size):
        table = pa.Table.from_pylist(rows)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def convert_one(source: Path) -> None:
    """Convert in this process and print what it took, as JSON."""
    from data_prep.convert import convert

    start = time.perf_counter()
    result = convert(source, source.with_name("converted.parquet"), format="verl")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"rows": result.rows, "wall_s": time.perf_counter() - start, "peak_mib": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=10.0)
    parser.add_argument("--work", type=Path, help="a folder on a disk with room; by default the system's temporary one")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/data_large.json")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        convert_one(args.one)
        return
    runs = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory(dir=args.work) as directory:
            source = Path(directory) / f"large{kind}"
            make(source, int(args.gb * 1e9))
            command = [sys.executable, __file__, "--one", str(source)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            answer = subprocess.run(
                command, check=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            runs[kind] = {
                "source_bytes": source.stat().st_size,
                **json.loads(answer.stdout),
                "load1": os.getloadavg()[0],
            }
            print(f"{kind}: {runs[kind]}", flush=True)
    args.out.write_text(json.dumps({"cores": os.cpu_count(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
