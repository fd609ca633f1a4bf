"""Benchmark of the sample stream beside the TransferQueue package, Arrow and raw shared memory.

    python benchmarks/stream.py

4,096 ragged rows (lengths U[200, 2000]: token ids, log-probs, loss mask, one reward) go from a
producer process to a consumer process in batches of 64. Every mode starts from the same per-row
arrays, packs them in its own format, moves them, and sums every value on the other side; the sums
must agree. What is compared is samples per CPU-second of the *whole* system: the process tree
with driver, raylet, GCS, storage and controller processes.

Each (repetition, system) runs in a Ray cluster of its own, one after the other, interleaved, so
that no system pays for another's idle processes; all have the engine's settings of Ray. The first
pass of a mode warms it up and is not counted. Two payloads: `wide` is the package's own (ids and
mask int64, 20 bytes per token), `compact` is what our producers hand over (ids int32, mask uint8, 9 bytes per token).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from relax_engine.core.cluster import local_environment

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS: dict[str, tuple[str, ...]] = {
    "stream": ("stream_sync_wide", "stream_seq_wide", "stream_pipe_wide", "stream_seq_compact", "stream_pipe_compact"),
    "transfer_queue": ("transfer_queue_seq_wide", "transfer_queue_pipe_wide"),
    "shared_memory": ("arrow_seq_wide", "arrow_seq_compact", "raw_seq_wide", "raw_seq_compact"),
}
PASSES = {"stream": 8, "transfer_queue": 1, "shared_memory": 16}
FIELDS = ("input_ids", "log_probs", "loss_mask")
Rows = dict[str, Any]


def make_rows(count: int, compact: bool) -> Rows:
    """The same rows in every process: per-row arrays, as a rollout hands them over."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(200, 2001, count)
    ids_type, mask_type = (np.int32, np.uint8) if compact else (np.int64, np.int64)
    return {
        "input_ids": [rng.integers(0, 151_936, n).astype(ids_type) for n in lengths],
        "log_probs": [-rng.random(n, np.float32) for n in lengths],
        "loss_mask": [np.ones(n, mask_type) for n in lengths],
        "reward": rng.random(count, np.float32),
    }


def payload_bytes(rows: Rows) -> int:
    """Bytes of values, without offsets."""
    return sum(row.nbytes for name in FIELDS for row in rows[name]) + rows["reward"].nbytes


def pack(rows: Rows, start: int, stop: int) -> Any:
    """One batch in our column format."""
    from relax_engine.stream.columns import Column, ColumnBatch

    columns = {name: Column.ragged(rows[name][start:stop], rows[name][0].dtype) for name in FIELDS}
    return ColumnBatch({**columns, "reward": Column.fixed(rows["reward"][start:stop])})


class Sums:
    """Reads every value: integer columns exactly, float columns in double precision."""

    def __init__(self) -> None:
        self.rows = 0
        self.sums = dict.fromkeys((*FIELDS, "reward"), 0.0)

    def add(self, rows: int, values: dict[str, np.ndarray]) -> None:
        self.rows += rows
        for name, array in values.items():
            self.sums[name] += float(array.sum(dtype=np.float64 if array.dtype.kind == "f" else np.int64))

    def result(self) -> dict[str, float]:
        return {"rows": self.rows, **self.sums}


class Producer:
    """Ray actor: holds the rows and sends them, one method per system."""

    def __init__(self, count: int, batch: int, compact: bool, client: Any) -> None:
        self.rows, self.count, self.batch, self.client = make_rows(count, compact), count, batch, client

    def bytes(self) -> int:
        return payload_bytes(self.rows)

    def _ranges(self) -> list[tuple[int, int]]:
        return [(start, min(start + self.batch, self.count)) for start in range(0, self.count, self.batch)]

    def stream(self, partition: str, one_by_one: bool) -> None:
        if one_by_one:
            for start, stop in self._ranges():
                self.client.put(partition, pack(self.rows, start, stop))
        else:
            puts = [self.client.put_nowait(partition, pack(self.rows, start, stop)) for start, stop in self._ranges()]
            for put in puts:
                put.rows()
        self.client.seal(partition)

    def transfer_queue(self, partition: str) -> None:
        import torch
        import transfer_queue
        from tensordict import TensorDict

        if self.client is None:
            torch.set_num_threads(1)
            transfer_queue.init()
            self.client = transfer_queue.get_client()
        for start, stop in self._ranges():
            fields = {
                name: torch.nested.as_nested_tensor(
                    [torch.from_numpy(row) for row in self.rows[name][start:stop]], layout=torch.jagged
                )
                for name in FIELDS
            }
            fields["reward"] = torch.from_numpy(self.rows["reward"][start:stop]).unsqueeze(1)
            self.client.put(data=TensorDict(fields, batch_size=stop - start), partition_id=partition)

    def clear_transfer_queue(self, partition: str) -> None:
        self.client.clear_partition(partition)

    def arrow(self, directory: str) -> None:
        import pyarrow as pa

        for number, (start, stop) in enumerate(self._ranges()):
            batch = pack(self.rows, start, stop).to_arrow()
            with pa.OSFile(f"{directory}/{number}", "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
                writer.write_batch(batch)

    def raw(self, directory: str) -> None:
        for number, (start, stop) in enumerate(self._ranges()):
            batch = pack(self.rows, start, stop)
            with open(f"{directory}/{number}", "wb") as file:
                file.write(np.int64([stop - start, *(batch[name].values.nbytes for name in FIELDS)]).tobytes())
                for name in FIELDS:
                    file.write(memoryview(batch[name].offsets))
                    file.write(memoryview(batch[name].values))
                file.write(memoryview(batch["reward"].values))


class Consumer:
    """Ray actor: receives batches and sums every value."""

    def __init__(self, count: int, batch: int, compact: bool, client: Any) -> None:
        self.count, self.batch, self.client = count, batch, client
        self.types = (np.int32, np.float32, np.uint8) if compact else (np.int64, np.float32, np.int64)

    def ready(self) -> None:
        return None

    def stream(self, partition: str) -> dict[str, float]:
        sums = Sums()
        for delivery, batch in self.client.deliveries("train", partition, (*FIELDS, "reward"), self.batch, ahead=32):
            sums.add(delivery.num_rows, {name: column.values for name, column in batch.items()})
        self.client.drop(partition)
        return sums.result()

    def transfer_queue(self, partition: str) -> dict[str, float]:
        import torch
        import transfer_queue

        if self.client is None:
            torch.set_num_threads(1)
            transfer_queue.init()
            self.client = transfer_queue.get_client()
        sums, fields = Sums(), [*FIELDS, "reward"]
        got = 0
        while got < self.count:
            want = min(self.batch, self.count - got)
            meta = self.client.get_meta(data_fields=fields, batch_size=want, partition_id=partition, task_name="train")
            if len(meta) == 0:
                time.sleep(0.002)
                continue
            data = self.client.get_data(meta)
            columns = {name: data[name] for name in fields}
            flat = {name: column.values() if column.is_nested else column for name, column in columns.items()}
            sums.add(len(meta), {name: column.numpy() for name, column in flat.items()})
            got += len(meta)
        return sums.result()

    def arrow(self, directory: str) -> dict[str, float]:
        import pyarrow as pa

        sums = Sums()
        for number in range(-(-self.count // self.batch)):
            with pa.memory_map(f"{directory}/{number}") as file:
                table = pa.ipc.open_stream(file).read_all()
                values = {name: table[name].chunk(0).values.to_numpy() for name in FIELDS}
                sums.add(table.num_rows, {**values, "reward": table["reward"].chunk(0).to_numpy()})
        return sums.result()

    def raw(self, directory: str) -> dict[str, float]:
        sums = Sums()
        for number in range(-(-self.count // self.batch)):
            data = np.fromfile(f"{directory}/{number}", np.uint8)
            rows, *sizes = data[:32].view(np.int64).tolist()
            at, values = 32, {}
            for name, dtype, size in zip(FIELDS, self.types, sizes, strict=True):
                at += 8 * (rows + 1)
                values[name] = np.frombuffer(data, dtype, size // np.dtype(dtype).itemsize, at)
                at += size
            sums.add(rows, {**values, "reward": np.frombuffer(data, np.float32, rows, at)})
        return sums.result()


def tree_cpu() -> dict[int, tuple[str, float]]:
    """Name and CPU seconds so far of this process and its descendants, by process id."""
    used = {}
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            times, command = process.cpu_times(), process.cmdline()
        except psutil.Error:
            continue
        used[process.pid] = (Path(command[0]).name if command else "?", times.user + times.system)
    return used


def run_system(system: str, count: int, batch: int, units: int) -> list[dict[str, Any]]:
    """Measure the system's modes in a fresh Ray cluster; one record per mode."""
    import ray

    ray.init(
        num_cpus=16, object_store_memory=1 << 30, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    client = None
    if system == "stream":
        from relax_engine.stream.launch import start_stream

        client = start_stream(num_data_storage_units=units)
    elif system == "transfer_queue":
        import transfer_queue
        from omegaconf import OmegaConf

        backend = {"SimpleStorage": {"num_data_storage_units": units}}
        transfer_queue.init(OmegaConf.create({"controller": {"polling_mode": True}, "backend": backend}))
    records = []
    for mode in SYSTEMS[system]:
        name, order, width = mode.rsplit("_", 2)
        args = (count, batch, width == "compact", client)
        producer = ray.remote(num_cpus=0)(Producer).remote(*args)
        consumer = ray.remote(num_cpus=0)(Consumer).remote(*args)
        nbytes, _ = ray.get([producer.bytes.remote(), consumer.ready.remote()], timeout=120)
        for label, passes in (("warm", 1), ("run", PASSES[system])):
            before, start = tree_cpu(), time.perf_counter()
            for number in range(passes):
                place = f"{mode}_{label}_{number}"
                if system == "shared_memory":
                    place = tempfile.mkdtemp(prefix="stream_bench_", dir="/dev/shm")
                sent = getattr(producer, name).remote(place, *([order == "sync"] if client is not None else []))
                if order != "pipe":
                    ray.get(sent, timeout=600)
                sums, _ = ray.get([getattr(consumer, name).remote(place), sent], timeout=600)
                if system == "shared_memory":
                    shutil.rmtree(place)
                elif system == "transfer_queue":
                    ray.get(producer.clear_transfer_queue.remote(place), timeout=120)
            wall, after = time.perf_counter() - start, tree_cpu()
        used = [(who, total - before.get(pid, ("", 0.0))[1]) for pid, (who, total) in after.items()]
        cpu = sum(seconds for _, seconds in used)
        samples = count * passes
        records.append(
            {
                "mode": mode,
                "samples": samples,
                "payload_bytes_per_sample": nbytes / count,
                "wall_s": wall,
                "cpu_s": cpu,
                "samples_per_cpu_s": samples / cpu,
                "mb_per_cpu_s": nbytes * passes / 1e6 / cpu,
                "cpu_s_by_process": [(who, round(seconds, 2)) for who, seconds in used if seconds >= 0.02],
                "sums": sums,
                "load_1min": os.getloadavg()[0],
            }
        )
        ray.kill(producer)
        ray.kill(consumer)
        time.sleep(0.5)
    ray.shutdown()
    return records


def check_sums(records: list[dict[str, Any]]) -> None:
    """Every mode read the same values (integers exactly, floats to rounding).

    Raises:
        ValueError: the modes and sums that differ.
    """
    expected = records[0]
    for record in records[1:]:
        for key, value in expected["sums"].items():
            if abs(record["sums"][key] - value) > 1e-9 * abs(value):
                raise ValueError(f"{record['mode']} read {key}={record['sums'][key]}, {expected['mode']} read {value}")


def summarise(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians by mode, and the ratios that the design promises."""
    modes = [mode for names in SYSTEMS.values() for mode in names]
    medians = {
        mode: {
            key: statistics.median(record[key] for record in records if record["mode"] == mode)
            for key in ("samples_per_cpu_s", "mb_per_cpu_s", "cpu_s", "wall_s", "payload_bytes_per_sample")
        }
        for mode in modes
    }
    rate = {mode: medians[mode]["samples_per_cpu_s"] for mode in modes}
    return {
        "medians": medians,
        "ratios": {
            "pipe_over_transfer_queue_pipe_same_types": rate["stream_pipe_wide"] / rate["transfer_queue_pipe_wide"],
            "seq_over_transfer_queue_seq_same_types": rate["stream_seq_wide"] / rate["transfer_queue_seq_wide"],
            "pipe_over_transfer_queue_pipe_compact": rate["stream_pipe_compact"] / rate["transfer_queue_pipe_wide"],
            "seq_over_transfer_queue_seq_compact": rate["stream_seq_compact"] / rate["transfer_queue_seq_wide"],
            "seq_over_arrow_same_types": rate["stream_seq_wide"] / rate["arrow_seq_wide"],
            "pipe_over_arrow_same_types": rate["stream_pipe_wide"] / rate["arrow_seq_wide"],
            "seq_over_arrow_compact": rate["stream_seq_compact"] / rate["arrow_seq_compact"],
            "seq_compact_over_arrow_wide": rate["stream_seq_compact"] / rate["arrow_seq_wide"],
        },
    }


def main() -> int:
    """Run all repetitions, print medians and ratios, write the raw records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--units", type=int, default=2, help="storage units of the stream and of TransferQueue")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/stream.json")
    parser.add_argument("--system", choices=SYSTEMS, help="measure one system once and print its records")
    options = parser.parse_args()
    if options.system:
        records = run_system(options.system, options.rows, options.batch, options.units)
        print("RECORDS " + json.dumps(records))
        return 0
    settings = {**local_environment(), "TQ_LOGGING_LEVEL": "ERROR", "PYTHONPATH": str(ROOT)}
    records = []
    for repetition in range(options.repetitions):
        for system in SYSTEMS:
            command = [sys.executable, __file__, "--system", system]
            command += [f"--rows={options.rows}", f"--batch={options.batch}", f"--units={options.units}"]
            done = subprocess.run(
                command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True, timeout=900, check=True
            )
            line = next(line for line in done.stdout.splitlines() if line.startswith("RECORDS "))
            for record in json.loads(line.removeprefix("RECORDS ")):
                records.append({"repetition": repetition, **record})
                print(f"{repetition} {record['mode']:28s} {record['samples_per_cpu_s']:9.0f} samples/CPU-s", flush=True)
    check_sums(records)
    summary = summarise(records)
    for mode, median in summary["medians"].items():
        print(f"{mode:28s} {median['samples_per_cpu_s']:9.0f} samples/CPU-s {median['mb_per_cpu_s']:7.1f} MB/CPU-s")
    for name, ratio in summary["ratios"].items():
        print(f"{name:44s} {ratio:6.2f}x")
    setup = {"rows": options.rows, "batch": options.batch, "units": options.units, "cpus": os.cpu_count()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"setup": setup, **summary, "records": records}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
