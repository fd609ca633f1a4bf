from pathlib import Path

from publishers import make_tree, start, tell

from relax_engine.lineage import ArtifactStore

FETCHERS = 6

FETCH = """
import sys
from relax_engine.lineage import ArtifactStore
store = ArtifactStore.open(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
place = store.fetch("data")
print(place, len([(p.stat().st_size) for p in place.iterdir()]), flush=True)
"""


def test_fetchers_of_one_artifact_share_one_whole_checkout(tmp_path: Path):
    url = str(tmp_path / "store")
    store = ArtifactStore.open(url)
    artifact = store.publish(make_tree(tmp_path / "tree", 5, 40, 50_000), kind="dataset", name="data")
    fetchers = [start(FETCH, url) for _ in range(FETCHERS)]
    for fetcher in fetchers:
        tell(fetcher)
    answers = {fetcher.communicate(timeout=60)[0].strip() for fetcher in fetchers}
    assert answers == {f"{tmp_path}/store/checkouts/{artifact.digest} 40"}
    assert [p.name for p in (tmp_path / "store/checkouts").iterdir()] == [artifact.digest]
    assert store.verify(artifact) == []
