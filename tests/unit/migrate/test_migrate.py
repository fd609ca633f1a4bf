"""A whole recipe: the files that come out run in both modes with the source's values."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from relax_engine.cli.main import main
from relax_engine.config.parse import parse_args
from relax_engine.config.run_config import RunConfig
from relax_engine.migrate.errors import MigrationError
from relax_engine.migrate.migrate import Choices, migrate

VERL = """#!/usr/bin/env bash
set -x
pkill -9 ray
n=4
batch=$((2 * n))
train="['$HOME/data/train.parquet']"
ARGS=(trainer.n_gpus_per_node=8 trainer.nnodes=1)
python3 -m verl.trainer.main_ppo --config-path=config --config-name=base \\
    algorithm.adv_estimator={estimator} \\
    data.train_files="$train" \\
    data.val_files=/data/aime/test.parquet \\
    data.train_batch_size=${{batch}} \\
    actor_rollout_ref.model.path=/models/m \\
    actor_rollout_ref.rollout.n=$n \\
    actor_rollout_ref.actor.ppo_mini_batch_size=4 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    custom_reward_function.path=rewards/mine.py \\
    custom_reward_function.name=grade \\
    custom_reward_function.reward_kwargs.bonus=0.5 \\
    trainer.total_epochs=2 "${{ARGS[@]}}" "$@"
"""
REWARD = """def grade(data_source, solution_str, ground_truth, extra_info=None, bonus=0.0):
    # right, or not
    return (ground_truth in solution_str) + bonus
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    source = tmp_path / "theirs"
    (source / "rewards").mkdir(parents=True)
    (source / "scripts" / "config").mkdir(parents=True)
    (source / "setup.py").write_text("raise SystemExit\n")
    (source / "rewards" / "mine.py").write_text(REWARD)
    config = (
        "defaults: [ppo_trainer]\ndata:\n  max_prompt_length: 64\n  max_response_length: ${data.max_prompt_length}\n"
    )
    (source / "scripts" / "config" / "base.yaml").write_text(config)
    (source / "scripts" / "run.sh").write_text(VERL.format(estimator="grpo"))
    monkeypatch.chdir(tmp_path)
    return source / "scripts" / "run.sh"


def flags(script: Path, mode: str, *further: str) -> list[str]:
    """The command line that the script hands to training."""
    echo = script.parent / "echo.sh"
    echo.write_text('#!/bin/bash\nprintf "%s\\0" "$@"\n')
    echo.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "HOME": "/home/someone", "PYTHON": str(echo)}
    done = subprocess.run(
        ["bash", str(script), mode, *further], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split("\0")[:-1]
    assert words[:3] == ["-m", "relax_engine.cli.main", "train"]
    return words[3:]


def config_of(script: Path, mode: str) -> RunConfig:
    return parse_args(flags(script, mode))


def test_both_modes_have_the_values_of_the_source(recipe: Path) -> None:
    report = migrate("verl", recipe, Path("mine"), Choices(arguments=["actor_rollout_ref.actor.optim.lr=5e-7"]))
    script = Path("mine/run_mine.sh")
    for mode in ("sync", "async"):
        config = config_of(script, mode)
        flat = config.flat
        assert flat.prompt_data == ["/home/someone/data/train.relax.parquet"]
        assert flat.eval_prompt_data == {"aime": ["/data/aime/test.relax.parquet"]}
        assert (flat.rollout_batch_size, flat.n_samples_per_prompt, flat.global_batch_size) == (8, 4, 16)
        assert (flat.rollout_max_prompt_len, flat.rollout_max_response_len, flat.lr) == (64, 64, 5e-7)
        assert (flat.hf_checkpoint, flat.num_epoch, flat.bonus) == ("/models/m", 2, 0.5)
        assert (flat.custom_rm_path, flat.reward_key) == ("mine.reward_mine.reward_func", "score")
        assert (flat.eps_clip_c, flat.calculate_per_token_loss, flat.kl_loss_coef) == (3.0, True, 0.001)
    sync, asynchronous = config_of(script, "sync"), config_of(script, "async")
    assert (sync.mode, sync.resources.resource) == ("colocate", {"actor": (1, 8), "rollout": (1, 8)})
    assert asynchronous.mode == "fully_async"
    assert asynchronous.resources.resource == {
        "actor": (1, 4),
        "rollout": (1, 2),
        "actor_fwd": (1, 1),
        "reference": (1, 1),
        "advantages": (1, 0),
    }
    assert flags(script, "sync", "--lr", "1")[-2:] == ["--lr", "1"]
    assert "# right, or not" in Path("mine/reward_mine.py").read_text()
    assert (
        "relax data convert --format verl /data/aime/test.parquet /data/aime/test.relax.parquet" in script.read_text()
    )
    assert any("--global-batch-size 32 makes it one step" in proposal for proposal in report.proposals)
    assert json.loads(Path("mine/migration.json").read_text())["counts"]["needs you"] == 0
    assert not any("custom-rm-path" in finding for found in report.findings.values() for finding in found)


def test_an_algorithm_without_async_mode_says_so(recipe: Path) -> None:
    recipe.write_text(VERL.format(estimator="gae"))
    migrate("verl", recipe, Path("critic"))
    assert config_of(Path("critic/run_critic.sh"), "sync").resources.resource["critic"] == (1, 8)
    done = subprocess.run(["bash", "critic/run_critic.sh", "async"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "does not run in async mode" in done.stderr


def test_rewards_are_compared_on_rows(recipe: Path) -> None:
    rows = Path("rows.jsonl")
    row = {"data_source": "d", "reward_model": {"ground_truth": "7"}, "response": "7", "args": {"bonus": 0.5}}
    rows.write_text(json.dumps(row) + "\n")
    report = migrate("verl", recipe, Path("checked"), Choices(rows=rows))
    assert "rewards agree on all 1 responses" in report.notes


REDACCEL = """source ./env.sh "$@"
BATCH_SIZE=64
redaccel-cli rlx setup <(echo 'x: 1')
cmd=(
    trainer.plugin_dir=$DIR/../app
    reward_model.reward_name=Words
    actor_rollout_ref.rollout.response_length=128
    actor_rollout_ref.model.path=/models/m
)
redaccel-cli train "${cmd[@]}"
"""


def test_redaccel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(REDACCEL)
    Path("reward.py").write_text("class Words:\n    def __call__(self, p, c, s, **kw):\n        return [(1.0, {})]\n")
    report = migrate("redaccel", Path("run.sh"), Path("words"), Choices(reward="reward.py:Words"))
    flat = config_of(Path("words/run_words.sh"), "sync").flat
    assert (flat.rollout_batch_size, flat.rollout_max_response_len, flat.hf_checkpoint) == (64, 128, "/models/m")
    assert any("env.sh is sourced" in note for note in report.notes)


def test_slime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(
        "ARGS=(--hf-checkpoint $BASE/m --prompt-data a.jsonl --input-key prompt --label-key label\n"
        "  --rm-type deepscaler --num-rollout 3 --rollout-batch-size 4 --n-samples-per-prompt 2)\n"
        "ray job submit --address=x -- python3 train_async.py --actor-num-nodes 1 --actor-num-gpus-per-node 4"
        " --rollout-num-gpus 4 ${ARGS[@]}\n"
    )
    migrate("slime", Path("run.sh"), Path("deep"))
    script = Path("deep/run_deep.sh").read_text()
    assert '--hf-checkpoint "${BASE}/m"' in script
    config = config_of(Path("deep/run_deep.sh"), "async")
    assert config.resources.resource["actor"] == (1, 4)
    assert config.reward.rm_type == "deepscaler"
    assert config.data.n_samples_per_prompt == 2


def test_the_command(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "verl", str(recipe), "--out", "cmd", "--", "trainer.save_freq=3"]) == 0
    assert "mapped" in capsys.readouterr().out
    assert "save_interval: 3" in Path("cmd/cmd.yaml").read_text()
    assert main(["migrate", "verl", str(recipe.parent), "--survey"]) == 0
    assert "1 recipes" in capsys.readouterr().out


def test_what_is_refused(recipe: Path) -> None:
    with pytest.raises(MigrationError, match="letters, digits and underscores"):
        migrate("verl", recipe, Path("not-a-name"))
    with pytest.raises(MigrationError, match="no command starts training with slime"):
        migrate("slime", recipe, Path("x"))
    with pytest.raises(MigrationError, match=r"none\.sh: No such file"):
        migrate("verl", Path("none.sh"), Path("x"))
