#!/bin/bash
# GRPO on the demo's prompts without Flyte: data, model, supervised warm start, then RL.
#
# Usage: bash examples/tiny_math/run_tiny_math.sh [sync|async]
# Environment: OUT (where everything goes), NUM_ROLLOUT, SEED, PYTHON.

set -e
set -o pipefail

MODE=${1:-${MODE:-"sync"}}    # argument 1, else $MODE, else sync
case "${MODE}" in
    sync | async) ;;
    *) echo "unknown mode '${MODE}': use sync or async" >&2; exit 2 ;;
esac

SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
cd "${SCRIPT_DIR}/../.."

PYTHON="${PYTHON:-python3}"
OUT="${OUT:-build/tiny_math}"
SEED="${SEED:-0}"
NUM_ROLLOUT="${NUM_ROLLOUT:-120}"
EXP_NAME="tiny-math-grpo-${MODE}"
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

DATA_ARGS=(
    --input-key prompt
    --label-key label
    --metadata-key metadata
    --apply-chat-template
    --rollout-shuffle
    --rollout-seed "${SEED}"
    --seed "${SEED}"
    --rollout-max-prompt-len 48
    --rollout-max-response-len 12
)

OPTIMIZER_ARGS=(
    --optimizer adam
    --lr-decay-style constant
    --weight-decay 0.0
    --adam-beta1 0.9
    --adam-beta2 0.98
    --clip-grad 1.0
)

PERF_ARGS=(
    --tensor-model-parallel-size 1
    --max-tokens-per-gpu 4096          # dynamic batch memory cap
)

# --- data and model ---------------------------------------------------------
"${PYTHON}" -m examples.tiny_math.make_data "${OUT}/raw" --seed "${SEED}"
"${PYTHON}" -m examples.tiny_math.make_model "${OUT}/base" --seed "${SEED}"
for split in train heldout sft; do
    "${PYTHON}" -m relax_engine.cli.main data convert "${OUT}/raw/${split}.parquet" "${OUT}/data/${split}.parquet"
done

# --- supervised warm start --------------------------------------------------
rm -rf "${OUT}/warm" "${OUT}/run-${MODE}"
"${PYTHON}" relax_engine/entrypoints/train.py \
    --loss-type sft \
    --hf-checkpoint "${OUT}/base" \
    --prompt-data "${OUT}/data/sft.parquet" \
    --num-rollout 72 \
    --rollout-batch-size 128 \
    --global-batch-size 128 \
    --lr 2e-3 \
    --lr-warmup-iters 20 \
    --save "${OUT}/warm" \
    --save-interval 72 \
    "${DATA_ARGS[@]}" "${OPTIMIZER_ARGS[@]}" "${PERF_ARGS[@]}"
"${PYTHON}" -m relax_engine.cli.main export \
    --input-dir "${OUT}/warm" --output-dir "${OUT}/start" --origin-hf-dir "${OUT}/base" --force

# --- RL ---------------------------------------------------------------------
GRPO_ARGS=(
    --advantage-estimator grpo
    --eps-clip 0.2
    --eps-clip-high 0.28
    --disable-grpo-std-normalization
    --lr 3e-4
    --lr-warmup-iters 10
)

ROLLOUT_ARGS=(
    --hf-checkpoint "${OUT}/start"
    --prompt-data "${OUT}/data/train.parquet"
    --custom-rm-path examples.tiny_math.reward_tiny_math.reward_func
    --num-rollout "${NUM_ROLLOUT}"
    --rollout-batch-size 16
    --n-samples-per-prompt 8
    --rollout-temperature 1
    --global-batch-size 128            # rollout-batch-size x n-samples-per-prompt: one optimizer step per rollout
    --save "${OUT}/run-${MODE}"
    --save-interval 25
)

EVAL_ARGS=(
    --eval-interval 50
    --eval-prompt-data heldout "${OUT}/data/heldout.parquet"
)

LOG_ARGS=(
    --tb-experiment-name "${EXP_NAME}"
)

if [ "${MODE}" = "async" ]; then
    MODE_ARGS=(
        --resource '{"actor": [1, 1], "rollout": [1, 1], "actor_fwd": [1, 1], "advantages": [1, 0]}'
        --max-staleness 2
        --fully-async
    )
else
    MODE_ARGS=(
        --resource '{"actor": [1, 1], "rollout": [1, 1]}'
        --max-staleness 0
        --colocate
    )
fi

"${PYTHON}" relax_engine/entrypoints/train.py \
    "${MODE_ARGS[@]}" "${ROLLOUT_ARGS[@]}" "${DATA_ARGS[@]}" "${GRPO_ARGS[@]}" \
    "${OPTIMIZER_ARGS[@]}" "${PERF_ARGS[@]}" "${EVAL_ARGS[@]}" "${LOG_ARGS[@]}"
