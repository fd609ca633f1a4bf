"""The YAML file: defaults, and errors that name key, value and the nearest known name."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_engine.config import ConfigError
from relax_engine.elastic.autoscaler.config import AutoscalerConfig, read_autoscaler_config


def test_the_documented_numbers_are_the_defaults() -> None:
    config = AutoscalerConfig()
    assert (config.collect_interval, config.decide_interval, config.min_engines, config.max_engines) == (10, 30, 1, 32)
    out, back = config.scale_out, config.scale_in
    assert (out.token_usage, out.token_usage_duration, out.queued_per_engine) == (0.85, 30, 10)
    assert (out.queue_time_p95, out.ttft_p95, out.max_step, out.cooldown) == (5, 10, 4, 60)
    assert (back.token_usage, back.token_usage_duration, back.throughput_variation) == (0.3, 120, 0.1)
    assert (back.projected_usage, back.cooldown) == (0.5, 300)


def test_a_file_changes_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "autoscaler.yaml"
    path.write_text("max_engines: 8\nscale_out:\n  cooldown: 5\n")
    config = read_autoscaler_config(path)
    assert (config.max_engines, config.scale_out.cooldown, config.scale_out.token_usage) == (8, 5, 0.85)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_engine: 8", r"there is no max_engine; did you mean max_engines\?"),
        ("scale_out: {cooldwn: 5}", r"there is no scale_out.cooldwn; did you mean cooldown\?"),
        ("scale_out: {token_usage: 1.5}", "scale_out.token_usage 1.5: input should be less than or equal to 1"),
        ("max_engines: many", "max_engines 'many': input should be a valid integer"),
        ("min_engines: 9\nmax_engines: 8", "min_engines 9 is above max_engines 8"),
        ("scale_in: {token_usage: 0.9}", "engines would come and go"),
        ("scale_in: {projected_usage: 0.9}", "missed at once"),
        ("decide_interval: 5", "decide_interval 5 is shorter than collect_interval 10"),
        ("- 1", "expected `name: value` lines"),
    ],
)
def test_errors(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "autoscaler.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"--autoscaler-config .*{message}"):
        read_autoscaler_config(path)
