"""Spans of a step at a collector: what arrives is read with OpenTelemetry's own messages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from step_records import TIMES, recorded

from relax_engine.cli.trace import main as trace
from relax_engine.config import RunConfig
from relax_engine.errors import ConfigError
from relax_engine.observe.forward import forwarding
from relax_engine.observe.metrics import MetricsLog
from relax_engine.observe.otlp import ExportError, SpanSender
from relax_engine.observe.trackers import open_trackers
from tests.integration.otlp_collector import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def test_the_life_of_a_sample_arrives_as_a_tree(tmp_path: Path, collector: Collector) -> None:
    recorded(tmp_path, TIMES)
    sender = SpanSender(collector.url, tmp_path)
    count = sender.send(4)
    sender.close()
    spans = collector.spans()
    assert (collector.paths, collector.traces()) == (["/v1/traces"], 1)
    assert count == sum(map(len, spans.values())) == 1 + 3 + 3 + 6 * (1 + 6)
    (root,) = spans["step 4"]
    assert (root["service"], root["in"], root["times"]) == ("relax", None, (99.0, 113.0))
    assert root["attributes"] == {"relax.step": 4, "relax.run": tmp_path.name}
    assert [span["in"] for span in spans["optimizer"]] == ["step 4", "step 4"]
    assert {span["service"] for span in spans["optimizer"]} == {"relax.actor"}
    (group,) = spans["group 2"]
    assert (group["in"], group["attributes"]) == ("step 4", {"relax.group": 2, "relax.slowest_sample": 5})
    (sample,) = spans["sample 5"]
    assert (sample["in"], sample["times"]) == ("group 2", (99.0, 112.0))  # up to the optimizer step that took it
    assert sample["attributes"]["relax.engine"] == "http://engine-2:1"  # type: ignore[index]
    lived = {name: span["times"] for name, found in spans.items() for span in found if span["in"] == "sample 5"}
    assert lived == {
        "admission": (99.0, 100.0),
        "generate": (100.0, 109.0),
        "reward": (109.0, 109.5),
        "wait": (109.5, 110.0),
        "trainer_wait": (110.0, 111.0),
        "train": (111.0, 112.0),
    }


def test_the_same_step_has_the_same_ids(tmp_path: Path, collector: Collector) -> None:
    recorded(tmp_path, TIMES)
    sender = SpanSender(f"{collector.url}/v1/traces", tmp_path)
    sender.send(4)
    sender.send(4)
    sender.close()
    first, second = collector.requests
    assert first == second


def test_a_collector_that_refuses_is_named(tmp_path: Path, collector: Collector) -> None:
    recorded(tmp_path, TIMES)
    collector.status = 400
    with pytest.raises(ExportError, match=rf"{collector.url}/v1/traces did not take 49 spans of step 4"):
        SpanSender(collector.url, tmp_path).send(4)


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="collector:4318 is no address of a collector"):
        SpanSender("collector:4318", tmp_path)


def test_a_run_sends_each_of_its_steps_once(tmp_path: Path, collector: Collector) -> None:
    """Steps without anything recorded, and the evaluation of a step that was sent, send nothing."""
    recorded(tmp_path, TIMES)
    config = RunConfig.from_flat(hf_checkpoint="m", prompt_data=["p"], otlp_endpoint=collector.url)
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with forwarding(open_trackers(config, tmp_path), tmp_path):
        for step in range(3, 6):
            log.write(step, {"train/loss": 1.0})
        MetricsLog(tmp_path / "eval.jsonl").write(4, {"dataset": "held", "eval/held": 0.5})
    roots = [
        span.name
        for request in collector.requests
        for r in request.resource_spans
        for s in r.scope_spans
        for span in s.spans
        if not span.parent_span_id
    ]
    assert roots == ["step 4", "step 5"]


def test_the_command_sends_what_it_writes(
    tmp_path: Path, collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path, TIMES)
    assert trace([str(tmp_path), "--step", "4", "--otlp", collector.url]) == 0
    assert f"49 spans sent to {collector.url}" in capsys.readouterr().out
    assert "group 2" in collector.spans()
