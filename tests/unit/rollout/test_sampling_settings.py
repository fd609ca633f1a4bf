"""What a request asks for, and the seed of every sample."""

import random
from itertools import pairwise

from relax_engine.config import RunConfig
from relax_engine.rollout.sampling import SamplingSettings, sample_seed


def test_the_context_limit_shortens_long_prompts_only() -> None:
    settings = SamplingSettings(max_new_tokens=20, max_context_tokens=100)
    limits = [settings.request(0, prompt)["max_new_tokens"] for prompt in (1, 80, 81, 99, 100)]
    assert limits == [20, 20, 19, 1, 1]
    assert SamplingSettings(max_new_tokens=20).request(0, 10_000)["max_new_tokens"] == 20


def test_seeds_depend_on_run_and_sample_alone() -> None:
    settings = SamplingSettings(seed=5)
    indices = list(range(64))
    in_order = {i: settings.request(i, 3)["sampling_seed"] for i in indices}
    random.Random(0).shuffle(indices)
    assert {i: settings.request(i, 9)["sampling_seed"] for i in indices} == in_order
    assert all(sample_seed(6, i) != seed for i, seed in in_order.items())


def test_seeds_are_distinct_even_where_an_engine_adds_small_numbers() -> None:
    """Sample j of a request with n > 1 uses seed + j: neighbouring samples must not run into each other."""
    seeds = [sample_seed(42, i) for i in range(20_000)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len(set(seeds)) > 19_990
    near = sum(abs(a - b) < 64 for a, b in pairwise(seeds))
    assert near <= 2


def test_stops_are_sent_only_when_set() -> None:
    assert not {"stop", "stop_token_ids"} & SamplingSettings().request(0, 1).keys()
    params = SamplingSettings(stop=("\n",), stop_token_ids=(7,), temperature=0.5, top_p=0.9, top_k=5).request(0, 1)
    assert (params["stop"], params["stop_token_ids"]) == (["\n"], [7])
    assert (params["temperature"], params["top_p"], params["top_k"]) == (0.5, 0.9, 5)


def test_evaluation_has_its_own_flags_and_seed() -> None:
    args = RunConfig.from_flat(
        hf_checkpoint="m", rollout_temperature=1.0, eval_temperature=0.2, rollout_max_response_len=8,
        eval_max_response_len=64, rollout_stop=["."], rollout_seed=3,
    ).flat  # fmt: skip
    rollout, evaluation = SamplingSettings.from_config(args), SamplingSettings.for_evaluation(args)
    assert (rollout.temperature, rollout.max_new_tokens) == (1.0, 8)
    assert (evaluation.temperature, evaluation.max_new_tokens, evaluation.stop) == (0.2, 64, (".",))
    assert evaluation.request(0, 1)["sampling_seed"] != rollout.request(0, 1)["sampling_seed"]
