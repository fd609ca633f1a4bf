#!/bin/bash
# The coding agent example: data, models, supervised warm start, RL, and the score before and after.
#
# Usage: bash examples/swe_sandbox/run_swe_sandbox.sh [sync|async]
# Environment: OUT (where everything goes), SEED, PYTHON.

set -e
set -o pipefail

MODE=${1:-${MODE:-"sync"}}
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "${PYTHON:-python3}" -m examples.recipes swe_sandbox \
    --mode "${MODE}" --out "${OUT:-build/swe_sandbox}" --seed "${SEED:-0}"
