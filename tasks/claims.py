"""Claims of papers beside what comparisons of runs show.

The published numbers are those of arXiv 2604.11554 (Qwen3-4B on 16 H800; routing replay with Qwen3-30B-A3B), and where
a claim says so those of arXiv 2510.11370, which introduced routing replay (Qwen3-30B-A3B). What does not live here: the
runs (`reproduction.py`), and how their figures come about (`compare.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Mapping[str, Any]]
Claim = dict[str, Any]


def learning(results: Rows) -> list[Claim]:
    """What the runs learned, from the same start."""
    rewards = [row["sampled after"] for row in results]
    spread = max(rewards) - min(rewards)
    gain = min(rewards) - results[0]["sampled before"]
    return [
        claim("spread of the final reward over the variants", None, spread, "published: all modes reach the same"),
        claim("smallest gain in reward", None, gain, "published only as curves"),
    ]


def speeds(results: Rows, times: Rows) -> list[Claim]:
    """Samples per second over colocate's: of the fully-async variant on-policy, and of the fastest other one."""
    rates = [(row["mode"], time["samples/s"]) for row, time in zip(results, times, strict=True)]
    base = next(rate for mode, rate in rates if mode == "colocate")
    behind = [rate for mode, rate in rates if mode == "fully_async"]
    note = "shared cores: here the roles take time from one another"
    return [
        claim("speed of fully async on-policy over colocate", 1.12, behind[0] / base, note),
        claim("speed of fully async off-policy over colocate", 1.76, max(behind[1:]) / base, note),
    ]


def routing_replay(results: Rows, mismatch: Rows, times: Rows | None) -> list[Claim]:
    """Of a run without and one with the rollout's experts replayed, in this order; `times` None leaves out the clock.

    Engine and trainer choose differently because the trainer computes in bfloat16.
    """
    (without, replayed), (plain, _) = mismatch, results
    setting = "trainer in bfloat16, engine in its device's own precision"
    claims = [
        claim(
            "choices of experts that engine and trainer make differently (2510.11370)",
            0.10,
            replayed["choices changed"],
            f"{setting}; a choice is that of one layer for one token",
        ),
        claim(
            "log-prob gap with routing replay over without",
            0.62,
            replayed["log-prob gap"] / without["log-prob gap"],
            f"here {without['log-prob gap']:.2g} without; {setting}",
        ),
        claim(
            "KL of trainer and engine with routing replay over without (2510.11370)",
            0.49,
            replayed["KL"] / without["KL"],
            f"published 1.5e-3 to 7.5e-4, here {without['KL']:.2g} to {replayed['KL']:.2g}",
        ),
        claim(
            "share of tokens beyond a ratio of 2, with routing replay less without (2510.11370)",
            None,
            replayed["beyond 2"] - without["beyond 2"],
            f"published: a tenth of them is left; here {without['beyond 2']:.2g} without",
        ),
        claim(
            "final reward with routing replay less without",
            None,
            results[1]["sampled after"] - plain["sampled after"],
            "published: as high or higher",
        ),
    ]
    if times is not None:
        share = times[1]["seconds"] / times[0]["seconds"] - 1
        claims.append(claim("routing replay's share of a step", 0.019, share, "whole runs; their noise is larger"))
    return claims


def claim(text: str, published: float | None, here: float | None, note: str) -> Claim:
    """One row of the table; None for a number that there is not."""
    return {"claim": text, "published": published, "here": here, "note": note}
