"""Published numbers, and what comparisons give beside them."""

from __future__ import annotations

from typing import Any

import pytest

from tasks import claims, markdown

RESULTS = [
    {"mode": "colocate", "sampled before": 0.1, "sampled after": 0.5},
    {"mode": "hybrid", "sampled before": 0.1, "sampled after": 0.6},
    {"mode": "fully_async", "sampled before": 0.1, "sampled after": 0.55},
    {"mode": "fully_async", "sampled before": 0.1, "sampled after": 0.45},
]
TIMES = [{"samples/s": 10.0}, {"samples/s": 12.0}, {"samples/s": 11.0}, {"samples/s": 15.0}]
MISMATCH = [
    {"log-prob gap": 0.02, "KL": 4e-4, "beyond 2": 0.003, "choices changed": None},
    {"log-prob gap": 0.01, "KL": 1e-4, "beyond 2": 0.001, "choices changed": 0.04},
]


def by_claim(found: list[dict[str, Any]], side: str) -> dict[str, Any]:
    return {claim["claim"]: claim[side] for claim in found}


def test_what_modes_learned_and_how_fast() -> None:
    found = by_claim([*claims.learning(RESULTS), *claims.speeds(RESULTS, TIMES)], "here")
    assert list(found.values()) == pytest.approx([0.15, 0.35, 1.1, 1.5])
    assert list(by_claim(claims.speeds(RESULTS, TIMES), "published").values()) == [1.12, 1.76]


def test_what_routing_replay_repairs() -> None:
    times = [{"seconds": 100.0}, {"seconds": 103.0}]
    found = claims.routing_replay(RESULTS[:2], MISMATCH, times)
    assert list(by_claim(found, "published").values()) == [0.10, 0.62, 0.49, None, None, 0.019]
    assert list(by_claim(found, "here").values()) == pytest.approx([0.04, 0.5, 0.25, -0.002, 0.1, 0.03])
    assert len(claims.routing_replay(RESULTS[:2], MISMATCH, None)) == len(found) - 1


def test_tables_show_small_numbers_and_leave_out_what_is_not_known() -> None:
    rows = [{"a": 0.123456, "b": 1.5e-4, "c": None, "d": "x"}, {"a": 2.0, "b": 0.0, "c": 3, "d": ""}]
    assert markdown.table(rows).splitlines() == [
        "| a | b | c | d |",
        "|---|---|---|---|",
        "| 0.123 | 0.00015 |  | x |",
        "| 2.000 | 0.000 | 3 |  |",
    ]
