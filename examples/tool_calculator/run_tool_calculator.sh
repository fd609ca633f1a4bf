#!/bin/bash
# The calculator example: data, model, supervised warm start, RL, and the score before and after.
#
# Usage: bash examples/tool_calculator/run_tool_calculator.sh [sync|async]
# Environment: OUT (where everything goes), SEED, PYTHON.

set -e
set -o pipefail

MODE=${1:-${MODE:-"sync"}}
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "${PYTHON:-python3}" -m examples.recipes tool_calculator \
    --mode "${MODE}" --out "${OUT:-build/tool_calculator}" --seed "${SEED:-0}"
