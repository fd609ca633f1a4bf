"""What a wrong command line or file is told: the flag, the value, the bound, the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from relax_engine.config import ConfigError, RunConfig, parse_args


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--max-stalenes 1", "unknown flag --max-stalenes; did you mean --max-staleness?"),
        ("--temperature 1", "unknown flag --temperature; did you mean --rollout-temperature?"),
        ("--no-colocate", "unknown flag --no-colocate; did you mean --colocate?"),
        ("--xyzzy", "unknown flag --xyzzy; `relax train --help` lists all flags"),
        ("--max-staleness -1", "--max-staleness -1: must be at least 0 weight versions"),
        ("--adam-beta1 1", "--adam-beta1 1: must be less than 1.0"),
        ("--rollout-top-p 1.5", "--rollout-top-p 1.5: must be at most 1.0"),
        ("--lr 0", "--lr 0: must be greater than 0.0"),
        ("--lr fast", "--lr fast: must be a number"),
        ("--global-batch-size 1.5", "--global-batch-size 1.5: must be an integer"),
        ("--kl-loss-type low_var", "must be one of k1, k2, k3, low_var_kl; did you mean low_var_kl?"),
        ("--lr", "--lr: expected one argument"),
        ("--colocate yes", "'yes' belongs to no flag"),
        ("stray --lr 1", "'stray' belongs to no flag"),
        ("--resource {actor}", "--resource {actor}: not valid JSON"),
        ('--resource {"actr":[1,1]}', "must be one of actor, critic, rollout"),
        ('--resource {"actor":[1,-1]}', "--resource (at actor.1) -1: must be at least 0"),
        ("--ref-actor-config [1]", "--ref-actor-config [1]: must be a JSON object"),
        ("--eval-prompt-data aime", "dataset 'aime' has no path"),
        ("--eval-prompt-data a x.parquet a y.parquet", "dataset name 'a' occurs twice"),
        ("--config missing.yaml", "--config missing.yaml: No such file or directory"),
        ("--custom-config-path missing.yaml", "--custom-config-path missing.yaml: No such file"),
        ("--sglang-x {a", "--sglang-x {a: "),
    ],
)
def test_message(argv: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_args(argv.split())
    assert message in str(raised.value)


def test_all_wrong_values_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as raised:
        parse_args(["--lr", "0", "--rollout-batch-size", "0", "--kl-loss-type", "k9"])
    assert len(str(raised.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: [", "not valid YAML"),
        ("- a\n- b\n", "expected `name: value` lines"),
        ("learning_rate: 1\n", "unknown flag --learning-rate"),
        ("data: {lr: 1}\n", "lr is a key of section optimizer, not of data"),
        ("lr: yes\nrollout_batch_size: many\n", "--rollout-batch-size many: must be an integer"),
    ],
)
def test_file_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        RunConfig.from_yaml(path)
    assert message in str(raised.value)


def test_from_flat_refuses_unknown_names() -> None:
    with pytest.raises(ConfigError, match="did you mean --rollout-batch-size"):
        RunConfig.from_flat(rollout_batchsize=1)
