"""Programs the process tests start: each is one writer of a store, run as a process of its own."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

PUBLISH = """
import sys
from pathlib import Path
from relax_engine.lineage import ArtifactStore
url, folder, name, writer, count = sys.argv[1:6]
store = ArtifactStore.open(url)
print("ready", flush=True)
sys.stdin.readline()
for step in range(int(count)):
    path = Path(folder) / f"{writer}-{step}"
    path.mkdir()
    for part in range(3):
        (path / f"part{part}").write_bytes(f"{writer} {step} {part} ".encode() * 20000)
    print(store.publish(path, kind="dataset", name=name).ref, flush=True)
"""

PUBLISH_AND_POINT = """
import sys
from pathlib import Path
from relax_engine.lineage import ArtifactStore
url, folder, writer, count = sys.argv[1:5]
store = ArtifactStore.open(url)
print("ready", flush=True)
sys.stdin.readline()
for step in range(int(count)):
    path = Path(folder) / f"{writer}-{step}"
    path.write_text(f"{writer} {step}")
    published = store.publish(path, kind="model", name="tiny", metadata={"writer": writer, "step": step})
    store.tag("tiny", "production", published)
    print(published.ref, flush=True)
"""

PUBLISH_NAMES = """
import sys
from pathlib import Path
from relax_engine.lineage import ArtifactStore
url, folder, writer, count = sys.argv[1:5]
store = ArtifactStore.open(url)
print("ready", flush=True)
sys.stdin.readline()
for step in range(int(count)):
    path = Path(folder) / f"{writer}-{step}"
    path.write_text(f"{writer} {step}")
    store.publish(path, kind=("dataset", "model")[step % 2], name=f"w{writer}-{step}")
"""

SWAP = """
import sys
from relax_engine.lineage import ArtifactStore
from relax_engine.lineage.errors import AliasConflictError
url, target, rounds = sys.argv[1:4]
store = ArtifactStore.open(url)
print("ready", flush=True)
for step in range(int(rounds)):
    expected = sys.stdin.readline().strip() or None
    try:
        store.tag("tiny", "production", target, expected=expected)
        print("won", flush=True)
    except AliasConflictError:
        print("lost", flush=True)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a writer and wait until it has opened the store."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def tell(process: subprocess.Popen[str], line: str = "") -> None:
    """Send one line to a writer, which is its signal to go on."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def make_tree(folder: Path, seed: int, files: int, size: int) -> Path:
    """A directory of pseudo-random files."""
    generator = random.Random(seed)
    folder.mkdir(parents=True)
    for index in range(files):
        (folder / f"file{index}").write_bytes(generator.randbytes(size))
    return folder
