#!/bin/bash
# The search example: data, models, supervised warm start, RL, and the score before and after.
#
# Usage: bash examples/search_r1/run_search_r1.sh [sync|async]
# Environment: OUT (where everything goes), SEED, PYTHON.

set -e
set -o pipefail

MODE=${1:-${MODE:-"sync"}}
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "${PYTHON:-python3}" -m examples.recipes search_r1 \
    --mode "${MODE}" --out "${OUT:-build/search_r1}" --seed "${SEED:-0}"
