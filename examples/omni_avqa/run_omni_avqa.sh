#!/bin/bash
# The audio-visual example: data, model, supervised warm start, RL, and the score before and after.
#
# Usage: bash examples/omni_avqa/run_omni_avqa.sh [sync|async]
# Environment: OUT (where everything goes), SEED, PYTHON.

set -e
set -o pipefail

MODE=${1:-${MODE:-"sync"}}
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "${PYTHON:-python3}" -m examples.recipes omni_avqa \
    --mode "${MODE}" --out "${OUT:-build/omni_avqa}" --seed "${SEED:-0}"
