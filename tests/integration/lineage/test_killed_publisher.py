"""A publisher killed at any moment leaves the store whole, and publishing again finishes the work."""

import random
import signal
import time
from pathlib import Path

from publishers import make_tree, start, tell

from relax_engine.lineage import ArtifactStore

KILLS = 25
FILES = 12
FILE_BYTES = 400_000

PUBLISH_ONE = """
import sys
from relax_engine.lineage import ArtifactStore
from relax_engine.lineage.producer import describe_producer
url, path, name, parent = sys.argv[1:5]
store = ArtifactStore.open(url)
describe_producer(None)
print("ready", flush=True)
sys.stdin.readline()
print(store.publish(path, kind="checkpoint", name=name, parents=[parent]).ref, flush=True)
"""


def test_sigkill_at_random_moments_leaves_no_half_artifact(tmp_path: Path):
    url = str(tmp_path / "store")
    store = ArtifactStore.open(url)
    base = store.publish(make_tree(tmp_path / "base", 0, 1, 1000), kind="dataset", name="base")
    undisturbed = start(PUBLISH_ONE, url, make_tree(tmp_path / "warm", 1000, FILES, FILE_BYTES), "warm", base.ref)
    begin = time.monotonic()
    assert undisturbed.communicate("\n", timeout=60)[0] == "warm@v1\n"
    duration = time.monotonic() - begin
    moments = random.Random(7)
    interrupted = 0
    for attempt in range(1, KILLS + 1):
        source = make_tree(tmp_path / f"source{attempt}", attempt, FILES, FILE_BYTES)
        process = start(PUBLISH_ONE, url, source, "work", base.ref)
        tell(process)
        time.sleep(moments.uniform(0, 1.2 * duration))
        process.send_signal(signal.SIGKILL)
        finished = "work@v" in process.communicate(timeout=30)[0]

        visible = store.versions("work") if store.aliases("work") else []
        assert len(visible) in (attempt - 1, attempt)
        if finished:
            assert len(visible) == attempt
        interrupted += len(visible) < attempt
        assert [a.ref for a in store.descendants(base)] == ["warm@v1", *(a.ref for a in visible)]
        assert store.holders(source / "file0") == visible[attempt - 1 :]
        assert [problem for a in visible for problem in store.verify(a)] == []

        again = store.publish(source, kind="checkpoint", name="work", parents=[base])
        assert again.version == attempt
        assert len(again.files) == FILES
        assert store.verify(again) == []
    assert interrupted >= 3, "the kills came too late to test anything"
    assert interrupted < KILLS, "the kills came too early to test anything"
