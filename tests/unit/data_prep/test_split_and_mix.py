"""Parts without a common prompt, weights that are kept, and orders that depend on the seed alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.errors import DataError
from data_prep.mix import apportion, mix
from data_prep.shuffle import shuffled
from data_prep.split import split
from relax_engine.cli.data import main


def write(path: Path, rows: int, name: str = "r", group: int = 1000) -> Path:
    table = pa.table({"id": [f"{name}{i}" for i in range(rows)], "prompt": [f"{name} {i // 2}" for i in range(rows)]})
    pq.write_table(table, path, row_group_size=group)
    return path


def ids(path: Path) -> list[str]:
    found: list[str] = pq.read_table(path)["id"].to_pylist()
    return found


def test_parts_share_no_prompt_and_hold_what_was_asked_for(tmp_path: Path) -> None:
    data = write(tmp_path / "d.parquet", 1000)
    written = split(data, {"train": 0.9, "test": 50}, tmp_path / "out", seed=3)
    assert written == {"train": 900, "test": 50}
    train, test = (pq.read_table(tmp_path / "out" / f"{name}.parquet") for name in ("train", "test"))
    assert not set(train["prompt"].to_pylist()) & set(test["prompt"].to_pylist())
    numbers = [int(name[1:]) for name in train["id"].to_pylist()]
    assert numbers == sorted(numbers)
    split(data, {"train": 0.9, "test": 50}, tmp_path / "again", seed=3)
    assert (tmp_path / "again/test.parquet").read_bytes() == (tmp_path / "out/test.parquet").read_bytes()
    split(data, {"train": 0.9, "test": 50}, tmp_path / "other", seed=4)
    assert ids(tmp_path / "other/test.parquet") != test["id"].to_pylist()


@pytest.mark.parametrize("parts", [{"a": 0.9, "b": 0.2}, {"a": 2000}, {"a": 0.0}, {}])
def test_parts_that_cannot_be_are_refused(tmp_path: Path, parts: dict[str, float]) -> None:
    with pytest.raises(DataError, match="of 1000 rows"):
        split(write(tmp_path / "d.parquet", 1000), parts, tmp_path / "out")


def test_shares_follow_the_weights_to_the_row() -> None:
    assert apportion(np.array([1.0, 1.0, 1.0]), [100, 100, 100], 100) == [34, 33, 33]
    assert apportion(np.array([0.7, 0.3]), [1000, 1000], 10) == [7, 3]
    assert apportion(np.array([3.0, 1.0]), [300, 50], None) == [150, 50]


def test_a_mix_takes_each_row_once_and_depends_on_the_seed(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.parquet", 400, "a"), write(tmp_path / "b.parquet", 300, "b")
    result = mix([(a, 3), (b, 1)], tmp_path / "m.parquet", rows=200, seed=1)
    assert result.taken == (150, 50)
    mixed = ids(result.path)
    assert len(set(mixed)) == 200
    assert sum(name.startswith("a") for name in mixed) == 150
    assert mixed != sorted(mixed)
    # 25 % of b's rows among the first half, as in the whole: 3 standard deviations around 25 are 15 to 35.
    assert 15 <= sum(name.startswith("b") for name in mixed[:100]) <= 35
    before = result.path.read_bytes()
    assert mix([(a, 3), (b, 1)], tmp_path / "m.parquet", rows=200, seed=1).path.read_bytes() == before
    assert ids(mix([(a, 3), (b, 1)], tmp_path / "m.parquet", rows=200, seed=2).path) != mixed
    ordered = ids(mix([(a, 1), (b, 1)], tmp_path / "o.parquet", rows=20, shuffle=False).path)
    assert [name[0] for name in ordered] == ["a"] * 10 + ["b"] * 10


def test_rows_repeat_only_on_request_and_with_ids_of_their_own(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.parquet", 10, "a"), write(tmp_path / "b.parquet", 100, "b")
    with pytest.raises(DataError, match=r"a\.parquet has 10 rows, 25 are asked for"):
        mix([(a, 1), (b, 1)], tmp_path / "m.parquet", rows=50)
    mixed = ids(mix([(a, 1), (b, 1)], tmp_path / "m.parquet", rows=50, repeat=True).path)
    assert len(set(mixed)) == 50
    assert sum(name.startswith("a") and name.endswith("+1") for name in mixed) == 10
    assert sum(name.startswith("a") and name.endswith("+2") for name in mixed) == 5


def test_schemas_must_agree(tmp_path: Path) -> None:
    a = write(tmp_path / "a.parquet", 10)
    pq.write_table(pa.table({"id": ["x"], "prompt": [1]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"b\.parquet has the columns id: string, prompt: int64, but the first"):
        mix([(a, 1), (tmp_path / "b.parquet", 1)], tmp_path / "m.parquet", rows=2)


def test_an_external_shuffle_is_uniform_and_blind_to_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data_prep.shuffle.BUCKET_BYTES", 1000)
    table = pa.table({"n": list(range(1000))})
    pieces = [table.slice(0, 10), table.slice(10, 600), table.slice(610)]

    def order(parts: list[pa.Table], seed: int) -> list[int]:
        found = shuffled(iter(parts), table.schema, 8000, seed, tmp_path)
        return [n for part in found for n in part["n"].to_pylist()]

    assert order([table], 5) == order(pieces, 5)
    assert sorted(order([table], 5)) == list(range(1000))
    assert list(tmp_path.iterdir()) == []
    # The mean position of the first 100 rows over 20 seeds: 500 with a standard error of 6.5.
    means = [np.mean([order([table], seed).index(row) for row in range(0, 100, 5)]) for seed in range(20)]
    assert abs(np.mean(means) - 499.5) < 4 * 288.7 / np.sqrt(400)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "d.parquet", 100)
    assert main(["split", str(data), "--out", str(tmp_path / "s"), "--parts", "train=0.8", "test=20"]) == 0
    assert "train.parquet: 80 rows" in capsys.readouterr().out
    out = tmp_path / "m.parquet"
    assert main(["mix", f"{tmp_path}/s/train.parquet=3", f"{tmp_path}/s/test.parquet", "--out", str(out)]) == 0
    assert "60 rows of" in capsys.readouterr().out
    assert len(ids(out)) == 80
    assert main(["inspect", str(out)]) == 0
    assert "layout: none that can be told from the columns\n  id: string\n" in capsys.readouterr().out
    assert main(["split", str(data), "--out", str(tmp_path / "s"), "--parts", "train"]) == 1
    assert "is not of the form NAME=X" in capsys.readouterr().err
