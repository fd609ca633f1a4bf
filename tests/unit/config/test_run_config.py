"""`RunConfig`: four ways in with one result, derived defaults, immutability, copies."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError

from relax_engine.config import FlatView, RunConfig, parse_args
from relax_engine.config.fields import all_fields
from relax_engine.config.sections.optimizer import Optimizer


def test_four_ways_in_give_one_configuration(tmp_path: Path) -> None:
    flat, nested = tmp_path / "flat.yaml", tmp_path / "nested.yaml"
    flat.write_text("lr: 2.0e-5\nrollout-batch-size: 8\nsglang_dtype: float32\n")
    nested.write_text("optimizer: {lr: 2.0e-5}\ndata: {rollout_batch_size: 8}\nrollout: {sglang_dtype: float32}\n")
    configs = [
        parse_args(["--lr", "2e-5", "--rollout-batch-size", "8", "--sglang-dtype", "float32"]),
        RunConfig.from_yaml(flat),
        RunConfig.from_yaml(nested),
        RunConfig.from_flat(lr=2e-5, rollout_batch_size=8, sglang_dtype="float32"),
    ]
    assert len({config.digest() for config in configs}) == 1
    assert all(config == configs[0] for config in configs)


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("lr: 1.0\nrollout_batch_size: 8\noptimizer: adam\nsglang_a: 1\nsglang_b: 1\n")
    args = parse_args(["--config", str(path), "--lr", "0.5", "--sglang-b", "2"]).flat
    assert (args.lr, args.rollout_batch_size, args.optimizer) == (0.5, 8, "adam")
    assert args.sglang_args == {"a": 1, "b": 2}


def test_yaml_round_trip(tmp_path: Path) -> None:
    config = RunConfig.from_flat(
        resource={"actor": (1, 2), "rollout": (1, 1)}, eval_prompt_data={"a": ["x.parquet"]}, router_policy="random"
    )
    path = tmp_path / "out.yaml"
    path.write_text(config.to_yaml())
    again = RunConfig.from_yaml(path)
    assert again == config
    assert again.digest() == config.digest()
    assert RunConfig.from_flat(**json.loads(json.dumps(config.to_dict()))) == config


def test_a_configuration_read_back_has_changed_nothing_more(tmp_path: Path) -> None:
    config = RunConfig.from_flat(rollout_batch_size=4, max_tokens_per_gpu=64, hf_checkpoint="/m", eps_clip=0.2)
    assert config.changed().keys() == {"rollout_batch_size", "max_tokens_per_gpu", "hf_checkpoint"}
    path = tmp_path / "out.yaml"
    path.write_text(config.to_yaml())
    again = RunConfig.from_yaml(path)
    assert again.changed().keys() - {"use_dynamic_batch_size"} == config.changed().keys()


def test_digest_follows_every_value() -> None:
    base = RunConfig.from_flat()
    assert base.digest() == RunConfig().digest()
    assert len(base.digest()) == 64
    assert base.digest() != base.replace(adam_eps=1e-7).digest()
    assert base.digest() != RunConfig.from_flat(custom={"max_turns": 1}).digest()


@pytest.mark.parametrize(
    ("given", "derived"),
    [
        ({"rollout_batch_size": 4, "n_samples_per_prompt": 8}, {"global_batch_size": 32, "num_steps_per_rollout": 1}),
        ({"rollout_batch_size": 4, "n_samples_per_prompt": 8, "num_steps_per_rollout": 4}, {"global_batch_size": 8}),
        ({"rollout_batch_size": 4, "n_samples_per_prompt": 8, "global_batch_size": 16}, {"num_steps_per_rollout": 2}),
        ({"rollout_batch_size": 4, "n_samples_per_prompt": 8, "max_staleness": 2}, {"stream_max_rows": 96}),
        ({"eps_clip": 0.3}, {"eps_clip_high": 0.3}),
        ({"eps_clip": 0.3, "eps_clip_high": 0.4}, {"eps_clip_high": 0.4}),
        ({"max_tokens_per_gpu": 64}, {"log_probs_max_tokens_per_gpu": 64, "use_dynamic_batch_size": True}),
        ({"rollout_max_prompt_len": 10, "rollout_max_response_len": 5}, {"rollout_max_context_len": 15}),
        ({"rollout_max_context_len": 100}, {"rollout_max_prompt_len": 99}),
        ({"hf_checkpoint": "/m"}, {"ref_load": "/m"}),
        ({"rollout_temperature": 0.7, "rollout_top_k": 5}, {"eval_temperature": 0.7, "eval_top_k": 5}),
        ({"eval_temperature": 0.0}, {"eval_temperature": 0.0}),
        # Where the actor would recompute log-probs of stale samples with the weights it trains, the engine's are taken.
        ({"hybrid": True, "max_staleness": 2}, {"use_rollout_logprobs": True}),
        ({"max_staleness": 2, "partial_rollout": True}, {"use_rollout_logprobs": True}),
        ({"update_weights_interval": 2}, {"use_rollout_logprobs": True}),
        ({"hybrid": True}, {"use_rollout_logprobs": False}),
        ({"max_staleness": 2}, {"use_rollout_logprobs": False}),  # colocate is on-policy whatever it says
        ({"fully_async": True, "max_staleness": 2}, {"use_rollout_logprobs": False}),  # actor_fwd has older weights
        ({"hybrid": True, "max_staleness": 2, "use_tis": True}, {"use_rollout_logprobs": False}),
        ({"hybrid": True, "max_staleness": 2, "use_decoupled_ppo": True}, {"use_rollout_logprobs": False}),
        ({"hybrid": True, "max_staleness": 2, "keep_old_actor": True}, {"use_rollout_logprobs": False}),
        ({"hybrid": True, "max_staleness": 2, "true_on_policy_mode": True}, {"use_rollout_logprobs": False}),
        ({"save": "/s"}, {"run_dir": "/s"}),
        ({"experiment_name": "x"}, {"run_dir": "build/runs/x", "tb_experiment_name": "x"}),
        ({"tb_experiment_name": "y"}, {"run_dir": "build/runs/y", "experiment_name": "y"}),
    ],
)
def test_derived_defaults(given: dict[str, object], derived: dict[str, object]) -> None:
    args = RunConfig.from_flat(**given).flat
    assert {name: getattr(args, name) for name in derived} == derived


def test_replace_derives_again_from_what_was_given() -> None:
    config = RunConfig.from_flat(rollout_batch_size=4, n_samples_per_prompt=2, eps_clip=0.2)
    changed = config.replace(n_samples_per_prompt=4, eps_clip=0.1)
    assert changed.flat.global_batch_size == 16
    assert changed.flat.eps_clip_high == 0.1
    assert config.flat.global_batch_size == 8
    assert config.explicit() == {"rollout_batch_size": 4, "n_samples_per_prompt": 2, "eps_clip": 0.2}


def test_custom_settings_become_attributes_and_can_set_flags(tmp_path: Path) -> None:
    path = tmp_path / "custom.yaml"
    path.write_text("max_turns: 3\nrollout_temperature: 0.5\njudge: {url: u}\n")
    config = parse_args(["--custom-config-path", str(path), "--rollout-temperature", "1"])
    assert config.custom == {"max_turns": 3, "judge": {"url": "u"}}
    assert config.flat.max_turns == 3
    assert config.flat.rollout_temperature == 0.5
    path.unlink()
    assert config.replace(lr=1.0).flat.max_turns == 3
    assert RunConfig.from_flat(**config.to_dict()).flat.max_turns == 3


def test_flat_view_is_complete_and_read_only() -> None:
    args = RunConfig.from_flat(sglang_dtype="float32").flat
    assert set(all_fields()) <= set(vars(args))
    assert args.sglang_dtype == "float32"
    assert getattr(args, "judge_url", "fallback") == "fallback"
    with pytest.raises(AttributeError, match="read-only"):
        args.lr = 1.0
    with pytest.raises(AttributeError, match="read-only"):
        del args.lr
    with pytest.raises(AttributeError, match="neither a flag nor a key of --custom-config-path"):
        _ = args.max_turns


def test_configuration_is_immutable() -> None:
    config = RunConfig.from_flat()
    with pytest.raises(ValidationError):
        config.optimizer.lr = 1.0  # type: ignore[misc]
    with pytest.raises(ValidationError):
        config.optimizer = Optimizer()  # type: ignore[misc]


def test_copies_and_pickles_do_not_share_a_stale_flat_view() -> None:
    config = RunConfig.from_flat(lr=0.25, custom={"k": 1})
    assert config.flat.lr == 0.25
    changed = config.model_copy(update={"optimizer": Optimizer(lr=0.5)})
    assert changed.flat.lr == 0.5
    for other in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), config.model_copy()):
        assert other == config
        assert other.flat.lr == 0.25
        assert other.explicit() == {"lr": 0.25}
    assert b"FlatView" not in pickle.dumps(config)
    args = pickle.loads(pickle.dumps(config.flat))
    assert isinstance(args, FlatView)
    assert (args.lr, args.k) == (0.25, 1)


def test_a_section_given_by_its_owner_is_not_changed() -> None:
    from relax_engine.config.sections.algorithm import Algorithm

    section = Algorithm(eps_clip=0.3)
    config = RunConfig(algorithm=section)
    assert config.algorithm.eps_clip_high == 0.3
    assert section.eps_clip_high is None
