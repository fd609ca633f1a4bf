"""Benchmark of weight sync beside the raw rate of the primitive that each transport is made of.

    python benchmarks/weight_sync.py [--parameters 1000000000]

A process that owns float32 tensors (the trainer) syncs them to one other process, which runs the receiving side of
a training rank: every bucket is verified by checksum, and its tensors replace those of the receiver. The time of a
sync is that of the whole transaction, from `begin` to `commit`. Raw rates, measured in the same run and alternating
with the syncs, move the same bytes in pieces of the same size between the same two processes and do nothing else:

- `gloo`: `torch.distributed.broadcast` of each piece;
- `memcpy`: a copy into shared memory by one process and out of it by the other, two pieces in turn.

The object store has no raw counterpart here; its rate is that of a local directory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.distributed as dist
from torch import Tensor

from relax_engine.weight_sync.buckets import Bucket
from relax_engine.weight_sync.group import MeetingPoint, join_group, leave_group
from relax_engine.weight_sync.inbox import WeightInbox
from relax_engine.weight_sync.messages import BucketMeta, GroupAddress, Source, TensorMeta
from relax_engine.weight_sync.sender import WeightSender
from relax_engine.weight_sync.shared import open_tensors, share_tensors, shared_buffer
from relax_engine.weight_sync.store import WeightStore
from relax_engine.weight_sync.transports.base import Transport
from relax_engine.weight_sync.transports.broadcast import Broadcast
from relax_engine.weight_sync.transports.object_store import ObjectStore
from relax_engine.weight_sync.transports.shared_memory import SharedMemory

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 300.0
WARM_UPS = 2
LARGEST = 1 << 24
"""Values of one tensor."""


def make_tensors(parameters: int) -> list[tuple[str, Tensor]]:
    """Random float32 tensors of `parameters` values together."""
    generator = torch.Generator().manual_seed(0)
    sizes = [LARGEST] * (parameters // LARGEST) + ([parameters % LARGEST] if parameters % LARGEST else [])
    return [(f"layers.{i}.weight", torch.rand(size, generator=generator)) for i, size in enumerate(sizes)]


class Peer:
    """The receiving process: answers calls that come through a pipe."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.parameters = {f"layers.{i}.weight": torch.zeros(size) for i, size in enumerate(sizes)}
        self.inbox = WeightInbox(self._load, lambda: self.parameters.items(), timeout_s=TIMEOUT_S)
        self.group: Any = None

    def _load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in tensors:
            self.parameters[name] = tensor

    def raw_join(self, address: GroupAddress) -> None:
        """Enter the group of the raw broadcasts."""
        self.group = join_group(address, 1, timeout_s=TIMEOUT_S)

    def raw_leave(self) -> None:
        """Leave it."""
        leave_group(self.group)

    def raw_broadcast(self, pieces: Sequence[int]) -> None:
        """Receive pieces of these sizes."""
        buffer = torch.empty(max(pieces), dtype=torch.uint8)
        for nbytes in pieces:
            dist.broadcast(buffer[:nbytes], 0, self.group)

    def raw_open(self, handles: Sequence[bytes]) -> None:
        """Map the two pieces of shared memory."""
        self.shared = [open_tensors(handle)[0][1].numpy() for handle in handles]
        self.target = np.ones(self.shared[0].size, dtype=np.uint8)

    def raw_copy(self, turn: int, nbytes: int) -> None:
        """Copy one piece out."""
        np.copyto(self.target[:nbytes], self.shared[turn][:nbytes])

    def serve(self, pipe: Connection) -> None:
        """Answer calls until None comes."""
        while (call := pipe.recv()) is not None:
            name, arguments = call
            try:
                owner = self if name.startswith("raw_") else self.inbox
                pipe.send((True, getattr(owner, name)(*arguments)))
            except Exception as error:  # noqa: BLE001 - the other side raises it
                pipe.send((False, repr(error)))


def run_peer(pipe: Connection, sizes: Sequence[int]) -> None:
    """Main of the receiving process."""
    torch.set_num_threads(1)
    Peer(sizes).serve(pipe)


class PipeReceiver:
    """The receiving process as `weight_sync.messages.Receiver`."""

    name, processes = "peer", 1

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def ask(self, name: str, *arguments: Any) -> Any:
        """One call and its answer."""
        self.pipe.send((name, arguments))
        return self.answer()

    def answer(self) -> Any:
        """The answer to a call that was sent."""
        good, value = self.pipe.recv()
        if not good:
            raise RuntimeError(value)
        return value

    def answered(self, error: BaseException) -> bool:
        return isinstance(error, RuntimeError)

    async def join(self, address: GroupAddress, rank: int) -> None:
        await asyncio.to_thread(self.ask, "join", address, rank)

    async def leave(self, address: GroupAddress) -> None:
        await asyncio.to_thread(self.ask, "leave", address.name)

    async def begin(self) -> str:
        return str(await asyncio.to_thread(self.ask, "begin"))

    async def receive(self, bucket: BucketMeta, sources: Sequence[Source]) -> None:
        await asyncio.to_thread(self.ask, "receive", bucket, sources[0])

    async def pull(self, url: str, version: int) -> None:
        await asyncio.to_thread(self.ask, "pull", url)

    async def commit(self, version: int) -> None:
        await asyncio.to_thread(self.ask, "end")

    async def quarantine(self) -> None: ...

    async def close(self) -> None: ...


def pieces_of(total: int, bucket: int) -> list[int]:
    """Sizes of the pieces that `total` bytes are cut into."""
    return [min(bucket, total - start) for start in range(0, total, bucket)]


def raw_gloo(receiver: PipeReceiver, tensors: Sequence[tuple[str, Tensor]], bucket: int) -> float:
    """Seconds to broadcast the bytes of all tensors."""
    meeting = MeetingPoint("127.0.0.1")
    address = GroupAddress("127.0.0.1", meeting.port, f"raw-{time.time_ns()}", 2, "gloo")
    receiver.pipe.send(("raw_join", (address,)))
    group = join_group(address, 0, timeout_s=TIMEOUT_S)
    receiver.answer()
    pieces = pieces_of(sum(tensor.nbytes for _, tensor in tensors), bucket)
    source = torch.cat([tensor for _, tensor in tensors[: bucket // 4 // LARGEST + 1]]).view(torch.uint8)
    started = time.perf_counter()
    receiver.pipe.send(("raw_broadcast", (pieces,)))
    for nbytes in pieces:
        dist.broadcast(source[:nbytes], 0, group)
    receiver.answer()
    seconds = time.perf_counter() - started
    receiver.ask("raw_leave")
    leave_group(group)
    return seconds


def raw_memcpy(receiver: PipeReceiver, tensors: Sequence[tuple[str, Tensor]], bucket: int) -> float:
    """Seconds to copy the bytes of all tensors through two pieces of shared memory."""
    buffers = [shared_buffer(bucket) for _ in range(2)]
    meta = BucketMeta((TensorMeta("piece", "uint8", (bucket,)),), "")
    receiver.ask("raw_open", [share_tensors(Bucket(meta, buffer, (0,))) for buffer in buffers])
    arrays = [buffer.numpy() for buffer in buffers]
    source = [tensor.view(torch.uint8).numpy() for _, tensor in tensors]
    for array in arrays:
        array.fill(1)
    started = time.perf_counter()
    turn, filled, asked = 0, 0, False
    for part in source:
        start = 0
        while start < part.size:
            nbytes = min(bucket - filled, part.size - start)
            np.copyto(arrays[turn][filled : filled + nbytes], part[start : start + nbytes])
            filled, start = filled + nbytes, start + nbytes
            if filled == bucket or (part is source[-1] and start == part.size):
                if asked:
                    receiver.answer()
                receiver.pipe.send(("raw_copy", (turn, filled)))
                turn, filled, asked = 1 - turn, 0, True
    receiver.answer()
    return time.perf_counter() - started


def sync(receiver: PipeReceiver, tensors: Sequence[tuple[str, Tensor]], sender: WeightSender, version: int) -> float:
    """Seconds of one whole sync."""
    report = asyncio.run(sender.push(lambda: iter(tensors), [receiver], version))
    assert report.nbytes == sum(tensor.nbytes for _, tensor in tensors)
    return report.seconds


def measure(options: argparse.Namespace, store: str) -> dict[str, Any]:
    """All rates, in GB/s, of every repetition; the first two rounds fill the buffers and are not counted."""
    tensors = make_tensors(options.parameters)
    total, bucket = sum(tensor.nbytes for _, tensor in tensors), options.bucket_mib << 20
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    peer = context.Process(target=run_peer, args=(theirs, [tensor.numel() for _, tensor in tensors]), daemon=True)
    peer.start()
    receiver = PipeReceiver(pipe)
    transports: dict[str, Transport] = {"broadcast": Broadcast("127.0.0.1"), "shared_memory": SharedMemory()}
    if options.object_store:
        transports["object_store"] = ObjectStore(WeightStore(store))
    senders = {
        name: WeightSender(transport, bucket_bytes=bucket, timeout_s=TIMEOUT_S)
        for name, transport in transports.items()
    }
    runs: dict[str, Callable[[int], float]] = {
        "gloo": lambda _: raw_gloo(receiver, tensors, bucket),
        "broadcast": lambda version: sync(receiver, tensors, senders["broadcast"], version),
        "memcpy": lambda _: raw_memcpy(receiver, tensors, bucket),
        "shared_memory": lambda version: sync(receiver, tensors, senders["shared_memory"], version),
    }
    if options.object_store:
        runs["object_store"] = lambda version: sync(receiver, tensors, senders["object_store"], version)
    rates: dict[str, list[float]] = {name: [] for name in runs}
    costs: dict[str, list[float]] = {name: [] for name in runs}
    processes = [psutil.Process(), psutil.Process(peer.pid)]
    for repetition in range(-WARM_UPS + 1, options.repetitions + 1):
        for name, run in runs.items():
            before = cpu_seconds(processes)
            rate = total / 1e9 / run(repetition)
            cost = (cpu_seconds(processes) - before) / (total / 1e9)
            label = repetition if repetition > 0 else "warm-up"
            print(f"{label} {name}: {rate:.2f} GB/s, {cost:.2f} CPU s/GB", flush=True)
            if repetition > 0:
                rates[name].append(rate)
                costs[name].append(cost)
    pipe.send(None)
    peer.join(30)
    return {"bytes": total, "gigabytes_per_second": rates, "cpu_seconds_per_gigabyte": costs}


def cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    """CPU time that the processes have had."""
    return float(sum(times.user + times.system for times in (process.cpu_times() for process in processes)))


def median_ratio(rates: dict[str, list[float]], name: str, raw: str) -> float:
    """Median over the repetitions of a sync's rate by the raw rate measured just before it."""
    return statistics.median(mine / theirs for mine, theirs in zip(rates[name], rates[raw], strict=True))


def main() -> None:
    """Measure, print, and write the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=1_000_000_000, help="float32 values; 13 bytes of RAM each")
    parser.add_argument("--bucket-mib", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--object-store", action="store_true", help="also write to and read from a directory")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/weight_sync.json")
    options = parser.parse_args()
    needed, free = 13 * options.parameters, psutil.virtual_memory().available
    if needed > free:
        fits = free // 13
        raise SystemExit(f"{needed / 1e9:.1f} GB of RAM are needed, {free / 1e9:.1f} are free: --parameters {fits}")
    torch.set_num_threads(1)
    store = tempfile.mkdtemp(prefix="relax-weights-")
    try:
        result = measure(options, store)
    finally:
        shutil.rmtree(store)
    rates = result["gigabytes_per_second"]
    ratios = {
        "broadcast / gloo": median_ratio(rates, "broadcast", "gloo"),
        "shared_memory / memcpy": median_ratio(rates, "shared_memory", "memcpy"),
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    setup = {
        "parameters": options.parameters,
        "bucket_mib": options.bucket_mib,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cores": psutil.cpu_count(),
        "load_average": psutil.getloadavg(),
    }
    document = {"setup": setup, "ratios": ratios, **result}
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
