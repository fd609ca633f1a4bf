"""The tool that writes docs/budget.md: every recipe and preset, and sums that are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relax_engine.config.model_presets import preset_names
from tools import budget


def test_costs_follow_from_steps_devices_and_price_and_every_preset_is_there(tmp_path: Path) -> None:
    budget.main(["--steps", "200", "--price", "4", "--output", str(tmp_path / "budget.md")])
    text = (tmp_path / "budget.md").read_text()
    rows = re.findall(r"^\| (\S+B, .+)$", text, flags=re.MULTILINE)
    assert len(rows) == 6
    for row in rows:
        _, devices, step, _, device_hours, cost, *_ = (cell.strip().replace(",", "") for cell in row.split("|"))
        assert float(device_hours) == pytest.approx(int(devices) * float(step) * 200 / 3600, rel=0.01)
        assert float(cost) == pytest.approx(4 * float(device_hours), rel=0.001)
    assert re.findall(r"^\| (\S+) \|", text, flags=re.MULTILINE)[-len(preset_names()) :] == preset_names()
