"""The spans of a step for OpenTelemetry: from the admission of a sample to the optimizer step that took it, over OTLP.

A step is a trace. Its root holds the phases of every role and the prompt groups, a group its samples, and a sample
the stages that it passed::

    step 12                          relax
      train, optimizer, ...          relax.actor
      generate, reward, ...          relax.rollout
      group 480                      relax.samples
        sample 3840
          admission, generate, reward, wait, trainer_wait, train

Ids follow from run, step and place in the tree, so what is sent twice is the same spans. What does not live here: when
they were (`spans.py`, `lives.py`), and who sends them while a run goes on (`trackers/traces.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relax_engine.errors import ConfigError, RelaxError
from relax_engine.observe.lives import GroupLife, step_groups, stretches
from relax_engine.observe.rollouts.filters import QueryError
from relax_engine.observe.spans import Span, phases
from relax_engine.utils.redact import redact

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_TRACES_PATH = "/v1/traces"
_BATCH = 2000
_SENT_SAMPLE = ("status", "reward", "engine", "response_length", "first_version", "age", "environment_seconds")


class ExportError(RelaxError):
    """A collector did not take the spans."""


@dataclass(slots=True)
class Node:
    """A span and those within it; times in seconds since the epoch."""

    service: str
    name: str
    start: float
    end: float
    attributes: dict[str, Any] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)


def step_tree(run_dir: Path, step: int) -> Node:
    """The tree of a step.

    Raises:
        QueryError: the run recorded nothing of it.
    """
    done = phases(run_dir, step)
    ends = [phase.end for phase in done if phase.track == "actor" and phase.name == "optimizer"]
    children = [_phase(phase) for phase in done]
    children += [_group(group, ends) for group in step_groups(run_dir, step)]
    if not children:
        raise QueryError(f"{run_dir} has neither phases nor samples of step {step}")
    root = Node("relax", f"step {step}", 0.0, 0.0, {"relax.step": step, "relax.run": run_dir.name}, children)
    return _around(root)


def readable_spans(tree: Node, run: str) -> Iterator[ReadableSpan]:
    """The tree as the SDK's spans; `run` tells the ids of one run from those of another."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, TraceFlags

    trace = int.from_bytes(hashlib.sha256(f"{run}\0{tree.name}".encode()).digest()[:16], "big")
    resources: dict[str, Resource] = {}

    def walk(node: Node, place: str, parent: SpanContext | None) -> Iterator[ReadableSpan]:
        digest = hashlib.sha256(f"{run}\0{place}".encode()).digest()
        context = SpanContext(trace, int.from_bytes(digest[:8], "big"), is_remote=False, trace_flags=TraceFlags(1))
        if node.service not in resources:
            resources[node.service] = Resource({"service.name": node.service, "service.instance.id": run})
        yield ReadableSpan(
            name=node.name,
            context=context,
            parent=parent,
            resource=resources[node.service],
            attributes={name: value for name, value in node.attributes.items() if value is not None},
            start_time=round(node.start * 1e9),
            end_time=round(node.end * 1e9),
        )
        for number, child in enumerate(node.children):
            yield from walk(child, f"{place}/{number} {child.name}", context)

    yield from walk(tree, tree.name, None)


class SpanSender:
    """Sends steps to a collector, over HTTP with protobuf."""

    def __init__(self, endpoint: str, run_dir: Path) -> None:
        """`endpoint` is the collector's address (`http://collector:4318`), to which `/v1/traces` is added where it has
        no path. Headers, certificates and timeouts are those of OpenTelemetry's variables (`$OTEL_EXPORTER_OTLP_...`).

        Raises:
            ConfigError: it is no HTTP address.
        """
        from urllib.parse import urlsplit

        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        if urlsplit(endpoint).scheme not in ("http", "https"):
            raise ConfigError(f"{redact(endpoint)} is no address of a collector; give one as in http://collector:4318")
        self._url = endpoint if urlsplit(endpoint).path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH
        self._exporter = OTLPSpanExporter(endpoint=self._url)
        self._run_dir = run_dir
        self._run = str(run_dir.absolute())

    def send(self, step: int) -> int:
        """Send the spans of a step; how many there were.

        Raises:
            QueryError: the run recorded nothing of it.
            ExportError: the collector did not take them.
        """
        from opentelemetry.sdk.trace.export import SpanExportResult

        spans = list(readable_spans(step_tree(self._run_dir, step), self._run))
        for start in range(0, len(spans), _BATCH):
            if self._exporter.export(spans[start : start + _BATCH]) is not SpanExportResult.SUCCESS:
                raise ExportError(f"{self._url} did not take {len(spans)} spans of step {step}; see the log above")
        return len(spans)

    def close(self) -> None:
        """End the connection."""
        self._exporter.shutdown()


def _phase(phase: Span) -> Node:
    return Node(f"relax.{phase.track}", phase.name, phase.start, phase.end, {"relax.step": phase.details["step"]})


def _group(group: GroupLife, optimizer_ends: Sequence[float]) -> Node:
    samples = [_sample(sample, optimizer_ends) for sample in group.samples]
    attributes = {"relax.group": group.index, "relax.slowest_sample": group.slowest["sample_index"]}
    return _around(Node("relax.samples", f"group {group.index}", 0.0, 0.0, attributes, samples))


def _sample(sample: Mapping[str, Any], optimizer_ends: Sequence[float]) -> Node:
    stages = [Node("relax.samples", name, start, end) for name, start, end in stretches(dict(sample))]
    began = sample["trained"]
    end = min((end for end in optimizer_ends if began is not None and end >= began), default=None)
    if began is not None and end is not None:
        stages.append(Node("relax.samples", "train", began, end))
    attributes = {f"relax.{name}": sample[name] for name in _SENT_SAMPLE}
    return _around(Node("relax.samples", f"sample {sample['sample_index']}", 0.0, 0.0, attributes, stages))


def _around(node: Node) -> Node:
    """`node` from the first start to the last end of its children."""
    node.start = min(child.start for child in node.children)
    node.end = max(child.end for child in node.children)
    return node
