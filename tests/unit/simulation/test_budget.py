"""docs/budget.md is what the recipes give, and its sums are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import budget

STEPS, PRICE = 500, 2.5


def test_the_page_is_what_the_tool_writes(tmp_path: Path) -> None:
    budget.main(["--output", str(tmp_path / "budget.md")])
    assert (tmp_path / "budget.md").read_text() == (budget.ROOT / "docs/budget.md").read_text()


def test_costs_follow_from_steps_devices_and_price() -> None:
    rows = re.findall(r"^\| (\S+B, .+)$", (budget.ROOT / "docs/budget.md").read_text(), flags=re.MULTILINE)
    assert len(rows) == 6
    for row in rows:
        _, devices, step, _, device_hours, cost, *_ = (cell.strip().replace(",", "") for cell in row.split("|"))
        assert float(device_hours) == pytest.approx(int(devices) * float(step) * STEPS / 3600, rel=0.01)
        assert float(cost) == pytest.approx(PRICE * float(device_hours), rel=0.001)
