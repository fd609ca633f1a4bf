"""Conversion of verl rows: rows per second and peak memory, beside a row-by-row pandas script.

    python benchmarks/data.py            # a million rows, three times each, each run a process of its own, in turns

The script beside is what porting guides tell to write: read everything with pandas, build a dictionary per row, write
the frame. It moves the columns as they are; ours also writes ids, provenance and metadata as JSON, and checks each
prompt and label. Results: benchmarks/results/data.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHUNK = 20_000


def make_rows(path: Path, rows: int) -> None:
    """Rows shaped like verl's GSM8K: a question of some 300 characters, a number, and the worked answer."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    for start in range(0, rows, CHUNK):
        table = pa.Table.from_pylist([_row(index) for index in range(start, min(rows, start + CHUNK))])
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _row(index: int) -> dict[str, Any]:
    a, b = index % 9973, index % 7919
    question = (
        f"A workshop makes {a} chairs on the first day and {b} on the second. Each chair needs four legs, and a box "
        f"holds {index % 47 + 2} legs. The workshop starts with an empty store and buys whole boxes only. "
        "How many chairs were made in the two days together?"
    )
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f'{question} Let\'s think step by step and answer after "####".'}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {
            "split": "train",
            "index": index,
            "question": question,
            "answer": f"On the first day {a}.\nOn the second day {b}.\nTogether {a} + {b} = {a + b}.\n#### {a + b}",
        },
    }


def run_relax(source: Path, destination: Path) -> None:
    """Ours."""
    from data_prep.convert import convert

    convert(source, destination, format="verl")


def run_pandas(source: Path, destination: Path) -> None:
    """One dictionary per row, a frame of them, one file."""
    import pandas as pd

    def row_of(row: Any) -> dict[str, Any]:
        converted = {"prompt": row["prompt"], "label": row["reward_model"]["ground_truth"]}
        if "preprocessed_images" in row:
            converted["image"] = [image["bytes"] for image in row["preprocessed_images"]]
        if "extra_info" in row:
            converted["extra_info"] = row["extra_info"]
        return converted

    frame = pd.read_parquet(source)
    pd.DataFrame([row_of(row) for _, row in frame.iterrows()]).to_parquet(destination, index=False)


RUNNERS = {"relax": run_relax, "pandas": run_pandas}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/data.json")
    parser.add_argument("--one", choices=sorted(RUNNERS), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measure(args.one, args.work)
        return
    with tempfile.TemporaryDirectory() as directory:
        results = compare(Path(directory), args.rows, args.repeats)
    args.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"rows/s: {results['speed_ratio']:.1f} times pandas; peak memory: 1/{results['memory_ratio']:.1f} of it")


def measure(name: str, work: Path) -> None:
    """Run one converter in this process; its rate counts from before its imports."""
    start, cpu = time.perf_counter(), time.process_time()
    RUNNERS[name](work / "verl.parquet", work / f"{name}.parquet")
    measured = {
        "wall_s": time.perf_counter() - start,
        "cpu_s": time.process_time() - cpu,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    (work / "result.json").write_text(json.dumps(measured))


def compare(work: Path, rows: int, repeats: int) -> dict[str, Any]:
    """Both on the same file, in turns; and that both made the same prompts and labels. Ratios are of the medians."""
    make_rows(work / "verl.parquet", rows)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("OMP_NUM_THREADS", None)  # each may use all cores
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in RUNNERS}
    for name in [*RUNNERS] * repeats:
        command = [sys.executable, __file__, "--one", name, "--work", str(work)]
        subprocess.run(command, check=True, env=environment, cwd=ROOT, stderr=subprocess.DEVNULL)
        run = json.loads((work / "result.json").read_text())
        runs[name].append({**run, "rows_per_s": rows / run["wall_s"], "load1": os.getloadavg()[0]})
        print(f"{name}: {runs[name][-1]}", flush=True)
    require_same(work, rows)

    def ratio(key: str) -> float:
        ours, theirs = ([run[key] for run in runs[name]] for name in ("relax", "pandas"))
        return statistics.median(theirs) / statistics.median(ours)

    return {
        "rows": rows,
        "source_mib": (work / "verl.parquet").stat().st_size / 2**20,
        "speed_ratio": ratio("wall_s"),
        "speed_ratio_cpu": ratio("cpu_s"),
        "memory_ratio": ratio("peak_mib"),
        "cores": os.cpu_count(),
        "runs": runs,
    }


def require_same(work: Path, rows: int) -> None:
    """The fast converter must not have been fast by leaving something out."""
    import pyarrow.parquet as pq

    ours, theirs = (pq.ParquetFile(work / f"{name}.parquet") for name in ("relax", "pandas"))
    if (ours.metadata.num_rows, theirs.metadata.num_rows) != (rows, rows):
        raise SystemExit(f"{ours.metadata.num_rows} and {theirs.metadata.num_rows} rows came out of {rows}")
    mine, other = (next(file.iter_batches(1000, columns=["prompt", "label"])).to_pylist() for file in (ours, theirs))
    if mine != other:
        raise SystemExit("the two converters disagree on prompts or labels")


if __name__ == "__main__":
    main()
