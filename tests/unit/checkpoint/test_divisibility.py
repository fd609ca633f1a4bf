"""Which layouts a model's sizes divide over, and what is said where they do not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from relax_engine.checkpoint.divisibility import misfits
from relax_engine.checkpoint.model_spec import ExpertSpec, ModelSpec
from relax_engine.checkpoint.rope import RopeSpec
from relax_engine.config.layout import ParallelLayout

DENSE = ModelSpec("Any", 12, 64, 96, 8, 2, 8, 101, 64, 1e-6, RopeSpec(1e4), False)
SPARSE = replace(DENSE, experts=ExpertSpec(6, 2, 32, True, shared_ffn_hidden_size=20))


@pytest.mark.parametrize(
    ("spec", "layout"),
    [
        (DENSE, ParallelLayout(8)),  # 8 ranks share 2 key/value heads
        (DENSE, ParallelLayout(pipeline=5, first_layers=3, last_layers=3)),
        (DENSE, ParallelLayout(pipeline=2, first_layers=4, last_layers=8)),
        (DENSE, ParallelLayout(pipeline=3, virtual=4, context=7)),
        (SPARSE, ParallelLayout(2, True, expert=3, expert_tensor=1)),
        (SPARSE, ParallelLayout(4, True, expert=6)),
    ],
)
def test_sizes_that_divide(spec: ModelSpec, layout: ParallelLayout) -> None:
    assert misfits(spec, layout) == []


@pytest.mark.parametrize(
    ("spec", "layout", "message"),
    [
        (DENSE, ParallelLayout(3), "8 attention heads do not divide over 3"),
        (
            replace(DENSE, num_attention_heads=12, num_query_groups=3),
            ParallelLayout(2),
            "3 key/value heads are neither",
        ),
        (DENSE, ParallelLayout(pipeline=5), "12 layers do not divide over 5 pipeline ranks"),
        (DENSE, ParallelLayout(pipeline=4, first_layers=2), r"12 layers do not .* \(after 2 at the ends\)"),
        (DENSE, ParallelLayout(pipeline=2, first_layers=4, last_layers=4), "12 layers do not divide over 2"),
        (DENSE, ParallelLayout(pipeline=3, virtual=3), "4 layers of a pipeline rank do not divide into 3"),
        (DENSE, ParallelLayout(expert=2), "Any has no experts to spread over 2"),
        (SPARSE, ParallelLayout(expert=4), "6 experts do not divide over 4"),
        (SPARSE, ParallelLayout(2), "need sequence parallelism"),
        (SPARSE, ParallelLayout(8, True, expert_tensor=1), "20 shared-expert columns do not divide over 8"),
        (SPARSE, ParallelLayout(expert_tensor=5), "32 expert columns do not divide over 5"),
    ],
)
def test_sizes_that_do_not(spec: ModelSpec, layout: ParallelLayout, message: str) -> None:
    problems = "; ".join(problem for _, problem in misfits(spec, layout))
    assert re.search(message, problems), problems
