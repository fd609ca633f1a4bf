"""Command lines as existing launch scripts spell them: they parse, and the values arrive."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from relax_engine.config import parse_args
from relax_engine.config.doctor import check

SCRIPT = """
    --hf-checkpoint {model} --ref-load {model} --megatron-to-hf-mode bridge
    --prompt-data "['{data}/train.parquet']" --input-key prompt --label-key label --metadata-key extra_info
    --multimodal-keys '{"image":"image"}' --reward-key score --apply-chat-template
    --custom-rm-path examples.my_algo.reward_my_algo.reward_func
    --num-rollout 200 --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 1024
    --rollout-max-prompt-len 512 --rollout-temperature 1 --global-batch-size 256 --rollout-shuffle
    --use-fault-tolerance
    --tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1
    --expert-model-parallel-size 1 --expert-tensor-parallel-size 1 --recompute-granularity full
    --recompute-method uniform --recompute-num-layers 1 --micro-batch-size 1 --max-tokens-per-gpu 9216
    --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl --entropy-coef 0
    --eps-clip 0.2 --eps-clip-high 0.28 --use-tis
    --optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98
    --clip-grad 1.0 --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer
    --rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.8
    --use-tensorboard --use-metrics-service --tb-project-name Relax/dev/my_algo --tb-experiment-name qwen-my_algo
    --attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
    --attention-backend flash
    --eval-interval 100 --eval-prompt-data aime a.parquet b.parquet
"""
ASYNC = """
    --resource '{"actor": [1, 4], "rollout": [1, 2], "reference": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]}'
    --max-staleness 3 --num-data-storage-units 1 --num-iters-per-train-update 8
    --ref-actor-config '{"tensor_model_parallel_size": 1, "max_tokens_per_gpu": 16384, "sequence_parallel": false,
                         "only_load_weight": true}'
    --fully-async --use-health-check
"""
SYNC = """
    --resource '{"actor": [1, 8], "rollout": [1, 8]}' --max-staleness 1 --num-data-storage-units 1
    --colocate --use-health-check --balance-data
"""


def test_sync_script() -> None:
    config = parse_args(shlex.split(SYNC + SCRIPT))
    args = config.flat
    assert config.mode == "colocate"
    assert config.staleness_bound == 0
    assert args.max_staleness == 1
    assert args.resource == {"actor": (1, 8), "rollout": (1, 8)}
    assert args.prompt_data == ["{data}/train.parquet"]
    assert args.multimodal_keys == {"image": "image"}
    assert args.eval_prompt_data == {"aime": ["a.parquet", "b.parquet"]}
    assert args.sglang_mem_fraction_static == 0.8
    assert args.sglang_args == {"mem_fraction_static": 0.8}
    assert (args.eps_clip, args.eps_clip_high, args.kl_loss_coef) == (0.2, 0.28, 0.001)
    assert (args.lr, args.adam_beta2, args.weight_decay) == (1e-6, 0.98, 0.1)
    assert args.use_dynamic_batch_size
    assert args.rollout_max_context_len == 1536
    assert args.experiment_name == "qwen-my_algo"
    assert args.optimizer_cpu_offload
    assert args.overlap_cpu_optimizer_d2h_h2d
    assert args.use_precision_aware_optimizer


def test_async_script() -> None:
    config = parse_args(shlex.split(ASYNC + SCRIPT))
    assert config.mode == "fully_async"
    assert config.staleness_bound == 3
    assert config.flat.resource["advantages"] == (1, 0)
    assert config.flat.num_iters_per_train_update == 8
    reference = config.replace(**config.flat.ref_actor_config)
    assert reference.flat.tensor_model_parallel_size == 1
    assert reference.flat.max_tokens_per_gpu == 16384
    assert reference.flat.log_probs_max_tokens_per_gpu == 16384
    assert not reference.flat.sequence_parallel
    assert reference.flat.only_load_weight


@pytest.mark.parametrize(("mode", "notes"), [(SYNC, {"colocate_is_on_policy"}), (ASYNC, set())])
def test_scripts_pass_the_doctor_on_files_that_exist(mode: str, notes: set[str], run_files: Any) -> None:
    """Once the placeholders are filled in, for a text model whose engines take one device each."""
    config = parse_args(shlex.split(mode + SCRIPT)).replace(
        hf_checkpoint=str(run_files.model),
        ref_load=str(run_files.model),
        prompt_data=[str(run_files.train)],
        eval_prompt_data={"aime": [str(run_files.test)]},
        custom_rm_path="json.loads",
        multimodal_keys={},
        rollout_num_gpus_per_engine=1,
    )
    findings = check(config)
    assert [str(finding) for finding in findings if finding.severity == "error"] == []
    assert {finding.rule for finding in findings} == {
        "accepted_without_effect",
        "restarts_need_checkpoints",
    } | notes


def test_remaining_flags_of_the_guides(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("max_turns: 5\nrollout_interaction_env_path: examples.my_algo.env_my_algo\n")
    flags = (
        "--num-epoch 15 --load DIR --save DIR --save-interval 20 --rm-type math --group-rm --kl-coef 0.01 "
        "--gamma 0.99 --lambd 0.95 --use-wandb --use-clearml --custom-generate-function-path a.rollout.generate"
    )
    args = parse_args([*shlex.split(flags), "--custom-config-path", str(settings)]).flat
    assert (args.num_epoch, args.save_interval, args.rm_type, args.group_rm) == (15, 20, "math", True)
    assert (args.gamma, args.lambd, args.kl_coef) == (0.99, 0.95, 0.01)
    assert args.max_turns == 5
    assert args.rollout_interaction_env_path == "examples.my_algo.env_my_algo"
    assert args.run_dir == "DIR"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["a.parquet"], ["a.parquet"]),
        (["['a.parquet', 'b.parquet']"], ["a.parquet", "b.parquet"]),
        (['["a.parquet","b.parquet"]'], ["a.parquet", "b.parquet"]),
        (["[/data/a.parquet, /data/b.parquet]"], ["/data/a.parquet", "/data/b.parquet"]),
        (["a.parquet", "b.jsonl"], ["a.parquet", "b.jsonl"]),
        (["a.parquet[0:100]"], ["a.parquet[0:100]"]),
    ],
)
def test_prompt_data_spellings(written: list[str], expected: list[str]) -> None:
    assert parse_args(["--prompt-data", *written]).flat.prompt_data == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (["aime", "x/a.parquet"], {"aime": ["x/a.parquet"]}),
        (["aime", "a.parquet", "gsm8k", "b.jsonl"], {"aime": ["a.parquet"], "gsm8k": ["b.jsonl"]}),
        (["aime", "a.parquet", "b.parquet"], {"aime": ["a.parquet", "b.parquet"]}),
        (["aime", "['a.parquet', 'b.parquet']"], {"aime": ["a.parquet", "b.parquet"]}),
        (["data/held_out.parquet"], {"held_out": ["data/held_out.parquet"]}),
        (["test", "t.parquet[0:10]"], {"test": ["t.parquet[0:10]"]}),
    ],
)
def test_eval_prompt_data_spellings(written: list[str], expected: dict[str, list[str]]) -> None:
    assert parse_args(["--eval-prompt-data", *written]).flat.eval_prompt_data == expected


def test_pass_through_values() -> None:
    flags = "--sglang-enable-mixed-chunk --sglang-context-length=4096 --sglang-lora-paths a b --router-policy random"
    args = parse_args([*shlex.split(flags), "--sglang-server-concurrency", "7"]).flat
    assert args.sglang_args == {"enable_mixed_chunk": True, "context_length": 4096, "lora_paths": ["a", "b"]}
    assert args.router_args == {"policy": "random"}
    assert args.sglang_server_concurrency == 7
