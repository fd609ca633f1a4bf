import time
from pathlib import Path

import pytest
from publishers import PUBLISH, PUBLISH_AND_POINT, PUBLISH_NAMES, SWAP, start, tell

from relax_engine.lineage import ArtifactStore
from relax_engine.lineage.names import FOLD

WRITERS = 8
EACH = 6
ROUNDS = 15
CROWD = 16
NAMES = 16


def test_every_version_of_every_writer_is_kept_and_complete(store_url: str, tmp_path: Path):
    names = [f"data{writer % 2}" for writer in range(WRITERS)]
    writers = [start(PUBLISH, store_url, tmp_path, names[w], w, EACH) for w in range(WRITERS)]
    for writer in writers:
        tell(writer)
    refs = [ref for writer in writers for ref in writer.communicate(timeout=60)[0].split()]
    assert all(writer.returncode == 0 for writer in writers)

    store = ArtifactStore.open(store_url)
    assert len(set(refs)) == WRITERS * EACH
    published = [artifact for name in store.names() for artifact in store.versions(name)]
    assert sorted(a.ref for a in published) == sorted(refs)
    assert len({a.digest for a in published}) == WRITERS * EACH
    per_name = WRITERS * EACH // 2
    for name in set(names):
        assert [a.version for a in store.versions(name)] == list(range(1, per_name + 1))
    assert [problem for a in published for problem in store.verify(a)] == []
    assert store.collect_garbage(grace_s=0, dry_run=True).removed == []


def test_writers_of_the_same_content_agree_on_one_version(tmp_path: Path):
    store_url = str(tmp_path / "store")
    folders = [tmp_path / f"w{w}" for w in range(WRITERS)]
    for folder in folders:
        folder.mkdir()
    writers = [start(PUBLISH, store_url, folder, "same", "writer", EACH) for folder in folders]
    for writer in writers:
        tell(writer)
    answers = [writer.communicate(timeout=60)[0].split() for writer in writers]
    assert all(len(answer) == EACH for answer in answers)
    assert {tuple(answer) for answer in answers} == {tuple(f"same@v{v}" for v in range(1, EACH + 1))}
    assert len(ArtifactStore.open(store_url).versions("same")) == EACH


def test_each_round_of_an_alias_race_has_exactly_one_winner(store_url: str, tmp_path: Path):
    store = ArtifactStore.open(store_url)
    for version in range(WRITERS):
        path = tmp_path / "weights"
        path.write_text(str(version))
        store.publish(path, kind="model", name="tiny")
    writers = [start(SWAP, store_url, f"tiny@v{w + 1}", ROUNDS) for w in range(WRITERS)]
    expected = ""
    for _ in range(ROUNDS):
        for writer in writers:
            tell(writer, expected)
        answers = [writer.stdout.readline().strip() for writer in writers]
        # Pointing an alias to where it points already succeeds without a change, so its holder is not counted.
        moved = [w for w, answer in enumerate(answers) if answer == "won" and f"tiny@v{w + 1}" != expected]
        assert len(moved) == 1
        expected = f"tiny@v{moved[0] + 1}"
        assert store.resolve("tiny@production").ref == expected
    for writer in writers:
        writer.communicate(timeout=30)
        assert writer.returncode == 0


@pytest.mark.long
def test_sixteen_writers_of_one_name_make_one_linear_history(store_url: str, tmp_path: Path):
    writers = [start(PUBLISH_AND_POINT, store_url, tmp_path, writer, 3) for writer in range(CROWD)]
    for writer in writers:
        tell(writer)
    refs = [writer.communicate(timeout=200)[0].split() for writer in writers]
    assert all(writer.returncode == 0 for writer in writers)

    store = ArtifactStore.open(store_url)
    versions = store.versions("tiny")
    assert [version.version for version in versions] == list(range(1, 3 * CROWD + 1))
    assert sorted(ref for mine in refs for ref in mine) == sorted(version.ref for version in versions)
    for writer, mine in enumerate(refs):  # each writer's own versions in its own order, under the refs that it was told
        made = [(v.ref, v.metadata["step"]) for v in versions if v.metadata["writer"] == str(writer)]
        assert made == list(zip(mine, range(3), strict=True))
    moves = store.moves("tiny")
    assert {move.version for move in moves} <= {version.version for version in versions}
    assert len(moves) == 3 * CROWD
    assert store.aliases("tiny")["production"] == moves[-1].version
    assert all(store.verify(version) == [] for version in versions)
    print(f"{len(versions)} versions of {CROWD} writers, {len(moves)} moves, production is v{moves[-1].version}")


@pytest.mark.long
def test_the_names_of_a_kind_are_right_while_sixteen_write_and_four_of_them_are_killed(store_url: str, tmp_path: Path):
    store = ArtifactStore.open(store_url)
    # Those that are killed would write for ever, so that none is done before its time.
    writers = [start(PUBLISH_NAMES, store_url, tmp_path, n, NAMES if n >= 4 else 100 * NAMES) for n in range(CROWD)]
    for writer in writers:
        tell(writer)
    looks, began = 0, time.monotonic()
    while any(writer.poll() is None for writer in writers):
        assert time.monotonic() - began < 200
        for number, writer in enumerate(writers[:4]):  # each when it has a quarter, a half, ... of its names
            if writer.poll() is None and len(list(tmp_path.glob(f"{number}-*"))) > NAMES * number // 4:
                writer.kill()
        exist = set(store._references.names())
        found = [set(store.names(kind)) for kind in ("dataset", "model")]
        assert exist <= found[0] | found[1] <= set(store._references.names())
        assert not found[0] & found[1]
        looks += 1
    assert [writer.wait(10) for writer in writers] == [-9] * 4 + [0] * 12
    kept = {f"w{writer}-{step}" for writer in range(4, CROWD) for step in range(NAMES)}
    assert kept <= set(store.names()) == set(store._references.names())
    assert all(int(name.rpartition("-")[2]) % 2 for name in store.names("model"))
    marks = len(list(store._backend.list("kinds/")))
    assert marks < FOLD + 2 * CROWD
    print(f"{len(store.names())} names, {looks} looks meanwhile, {marks} marks left")
