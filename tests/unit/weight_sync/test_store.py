"""Versions of the weights in an object store: what is written, read, kept and refused."""

import json
import uuid
from pathlib import Path

import fsspec
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from relax_engine.backends.engines.stored_model import download_newest
from relax_engine.weight_sync.buckets import Packer, Staging
from relax_engine.weight_sync.checksum import tensor_digest
from relax_engine.weight_sync.store import (
    Manifest,
    WeightStore,
    WeightStoreError,
    is_stored_version,
    latest_version,
    read_version,
)

Named = dict[str, Tensor]


def weights(seed: int, **changed: Tensor) -> Named:
    generator = torch.Generator().manual_seed(seed)
    return {f"w{i}": torch.randn(4, 50, generator=generator) for i in range(6)} | changed


def digests(named: Named) -> dict[str, int]:
    return {name: tensor_digest(tensor, "xxh3") for name, tensor in named.items()}


def write(store: WeightStore, version: int, named: Named, held: dict[str, int] | None = None) -> str:
    """Publish `named` in buckets of two tensors, without those that are `held`."""
    writer = store.writer()
    packer = Packer(Staging(1600, lambda nbytes: torch.empty(nbytes, dtype=torch.uint8)), held or {})
    for bucket in packer.pack(named.items()):
        writer.add(bucket)
    return writer.publish(packer.digests, version)


def read(url: str, held: dict[str, int] | None = None) -> tuple[Manifest, Named]:
    manifest, tensors = read_version(url, held or {})
    return manifest, dict(tensors)


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("scheme", ["path", "file", "memory"])
def test_a_version_comes_back_from_any_file_system(scheme: str, compress: bool, tmp_path: Path) -> None:
    url = {"path": str(tmp_path), "file": f"file://{tmp_path}", "memory": f"memory://{uuid.uuid4().hex}"}[scheme]
    named = weights(0, half=torch.ones(3, dtype=torch.bfloat16), scalar=torch.tensor(2.0))
    version = write(WeightStore(url, compress=compress), 7, named)
    assert is_stored_version(version)
    assert not is_stored_version(url)
    assert latest_version(url) == version
    manifest, back = read(version)
    assert manifest.version == 7
    assert manifest.digests == digests(named)
    assert back.keys() == named.keys()
    assert all(torch.equal(back[name], named[name]) and back[name].dtype == named[name].dtype for name in named)


def test_uncompressed_files_are_safetensors_that_anybody_reads(tmp_path: Path) -> None:
    named = weights(0)
    version = Path(write(WeightStore(str(tmp_path)), 1, named))
    content = [load_file(path) for path in sorted(version.glob("*.safetensors"))]
    assert [list(part) for part in content] == [["w0", "w1"], ["w2", "w3"], ["w4", "w5"]]
    assert torch.equal(content[2]["w5"], named["w5"])


def test_what_did_not_change_is_named_where_it_lies_and_read_only_if_it_is_not_held(tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path))
    first = weights(0)
    write(store, 1, first)
    second = weights(0, w3=torch.zeros(4, 50))
    url = write(store, 2, second, held=digests(first))
    assert [Path(name).name for name in files(Path(url))] == ["00000.safetensors", "manifest.json"]
    manifest, changed = read(url, digests(first))
    assert list(changed) == ["w3"]
    assert manifest.digests == digests(second)
    assert all(torch.equal(tensor, second[name]) for name, tensor in read(url)[1].items())
    assert read(url, digests(second))[1] == {}


def test_the_last_two_versions_are_kept_with_the_files_that_they_name(tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path))
    named = weights(0)
    urls = [write(store, 1, named)]
    for version in (2, 3, 4):
        changed = weights(0, w0=torch.full((4, 50), float(version)))
        urls.append(write(store, version, changed, held=digests(named)))
        named = changed
    # Version 1 has the files of what never changed; only version 2 had its own w0.
    assert [Path(url).exists() for url in urls] == [True, False, True, True]
    for url, version in zip(urls[2:], (3, 4), strict=True):
        _, back = read(url)
        assert back.keys() == named.keys()
        assert back["w0"][0, 0] == version
    urls.append(write(store, 5, weights(5)))
    urls.append(write(store, 6, weights(6)))
    assert [Path(url).exists() for url in urls] == [False, False, False, False, True, True]


def test_an_unfinished_version_is_never_seen_and_goes(tmp_path: Path) -> None:
    store = WeightStore(str(tmp_path))
    first = write(store, 1, weights(0))
    abandoned = store.writer()
    (bucket, *_) = Packer(Staging(1600, lambda n: torch.empty(n, dtype=torch.uint8)), {}).pack(weights(1).items())
    abandoned.add(bucket)
    assert latest_version(str(tmp_path)) == first
    write(store, 2, weights(2))
    directories = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(directories) == 2
    assert all((directory / "manifest.json").is_file() for directory in directories)


@pytest.mark.parametrize("compress", [False, True])
def test_damage_is_found(compress: bool, tmp_path: Path) -> None:
    url = write(WeightStore(str(tmp_path), compress=compress), 1, weights(0))
    victim = next(path for path in Path(url).iterdir() if path.name.startswith("00001"))
    data = bytearray(victim.read_bytes())
    data[-9] ^= 1
    victim.write_bytes(data)
    with pytest.raises(WeightStoreError, match=r"cannot read \S+/00001\.\w+: .*(checksum of )?the bucket 'w2'"):
        read(url)
    victim.unlink()
    with pytest.raises(WeightStoreError, match="FileNotFoundError"):
        read(url)
    # What is held need not be read.
    held = {name: digest for name, digest in digests(weights(0)).items() if name in ("w2", "w3")}
    assert sorted(read(url, held)[1]) == ["w0", "w1", "w4", "w5"]


def test_a_place_without_versions_has_none_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    assert latest_version(str(tmp_path)) is None
    (tmp_path / "latest.json").write_text("{}")
    with pytest.raises(WeightStoreError, match=r"cannot read \S+/latest\.json: KeyError"):
        latest_version(str(tmp_path))
    (tmp_path / "manifest.json").write_text(json.dumps({"version": 1}))
    with pytest.raises(WeightStoreError, match=r"cannot read \S+/manifest\.json: KeyError"):
        read(str(tmp_path))


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightStoreError, match=r"cannot write \S+/file/v-"):
        write(WeightStore(str(tmp_path / "file")), 1, weights(0))
    assert fsspec.filesystem("file").ls(str(tmp_path), detail=False) == [str(tmp_path / "file")]


def test_a_version_becomes_a_model_directory(tmp_path: Path) -> None:
    """All of its tensors, those of older files too, beside the configuration of a model with weights of its own."""
    model, target = tmp_path / "model", tmp_path / "made"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model-1.safetensors", "model.safetensors.index.json"):
        (model / name).write_text("{}")
    store, first = WeightStore(str(tmp_path / "store"), compress=True), weights(0)
    assert download_newest(store.url, model, target) is None
    assert not target.exists()
    write(store, 3, first)
    second = first | {"w1": torch.zeros(4, 50)}
    write(store, 4, second, held=digests(first))
    assert download_newest(store.url, model, target) == "4"
    assert files(target) == ["config.json", "model.safetensors", "tokenizer.json"]
    made = load_file(target / "model.safetensors")
    assert made.keys() == second.keys()
    assert all(torch.equal(made[name], second[name]) for name in second)
