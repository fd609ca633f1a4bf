#!/bin/bash
# The zoom example: data, model, supervised warm start, RL, and the score before and after.
#
# Usage: bash examples/deepeyes/run_deepeyes.sh [sync|async]
# Environment: OUT (where everything goes), SEED, PYTHON.

set -e
set -o pipefail

MODE=${1:-${MODE:-"sync"}}
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "${PYTHON:-python3}" -m examples.recipes deepeyes \
    --mode "${MODE}" --out "${OUT:-build/deepeyes}" --seed "${SEED:-0}"
