"""Write the demo's prompts from reasoning-gym, in verl's Parquet layout.

Three disjoint sets of words: `train.parquet` (prompts for RL), `heldout.parquet` (never trained on) and `sft.parquet`
(the supervised warm start). Word and answer come from reasoning-gym's `spell_backward` generator; its question
("Spell this word backward (example: sun -> nus): WORD") is kept in `extra_info` and asked in a shorter form, because a
byte-level model pays for every letter of it.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

TASK = "spell_backward"
MIN_LETTERS, MAX_LETTERS = 3, 5
PROMPT_TEMPLATE = "reverse {word}"
TRAIN_ROWS, HELDOUT_ROWS, SFT_ROWS = 5120, 512, 6144
SPLITS = ("train", "heldout", "sft")


def generate(seed: int, min_letters: int = MIN_LETTERS, max_letters: int = MAX_LETTERS) -> Iterator[dict[str, Any]]:
    """Distinct entries (`question`, `answer`, `metadata`) of the task, lower-case words only, in seeded order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # raised while one of reasoning-gym's dependencies compiles
        import reasoning_gym

    # The generator draws item i from Random(seed + i), so neighbouring seeds would repeat items: keep them far apart.
    dataset = reasoning_gym.create_dataset(
        TASK, seed=seed * 10_000_000, size=10_000_000, min_word_len=min_letters, max_word_len=max_letters
    )
    seen: set[str] = set()
    for index in range(len(dataset)):
        entry = dataset[index]
        word = entry["metadata"]["word"]
        if word.islower() and word not in seen:
            seen.add(word)
            yield entry


def to_row(entry: dict[str, Any], split: str, index: int) -> dict[str, Any]:
    """One row in verl's layout; the ground truth is also the answer that supervised training learns."""
    return {
        "data_source": f"reasoning_gym/{TASK}",
        "prompt": [{"role": "user", "content": PROMPT_TEMPLATE.format(word=entry["metadata"]["word"])}],
        "ability": "reasoning",
        "reward_model": {"style": "rule", "ground_truth": entry["answer"]},
        "extra_info": {
            "split": split,
            "index": index,
            "source_index": entry["metadata"]["source_index"],
            "question": entry["question"],
        },
    }


def make_data(
    directory: str | Path,
    *,
    seed: int = 0,
    train_rows: int = TRAIN_ROWS,
    heldout_rows: int = HELDOUT_ROWS,
    sft_rows: int = SFT_ROWS,
) -> dict[str, Path]:
    """Write the three files; no word is in two of them, and the same arguments give the same bytes.

    Returns:
        The path of each split (`train`, `heldout`, `sft`).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    entries = generate(seed)
    paths: dict[str, Path] = {}
    # Held-out words are drawn first, so that a larger training set never takes one of them.
    for split, rows in (("heldout", heldout_rows), ("train", train_rows), ("sft", sft_rows)):
        table = pa.Table.from_pylist([to_row(next(entries), split, index) for index in range(rows)])
        paths[split] = directory / f"{split}.parquet"
        pq.write_table(table, paths[split], compression="zstd")
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    """Command line: `python -m examples.tiny_math.make_data DIR [--seed N] [--train-rows N] ...`."""
    parser = argparse.ArgumentParser(description="Write the demo's prompts in verl's Parquet layout.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the word order (default 0)")
    parser.add_argument("--train-rows", type=int, default=TRAIN_ROWS, help=f"prompts for RL (default {TRAIN_ROWS})")
    parser.add_argument("--heldout-rows", type=int, default=HELDOUT_ROWS, help=f"default {HELDOUT_ROWS}")
    parser.add_argument("--sft-rows", type=int, default=SFT_ROWS, help=f"warm-start rows (default {SFT_ROWS})")
    options = parser.parse_args(argv)
    paths = make_data(
        options.directory,
        seed=options.seed,
        train_rows=options.train_rows,
        heldout_rows=options.heldout_rows,
        sft_rows=options.sft_rows,
    )
    for split, path in paths.items():
        print(f"{split}: {path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
