#!/usr/bin/env bash
# What a GPU is to show, most valuable first, in about 20 minutes.
#
#   benchmarks/on_gpu.sh OUT             # one log and one JSON per step, as it goes
#   benchmarks/on_gpu.sh --wheels DIR    # before: what an offline machine may lack
#   WHEELS=DIR benchmarks/on_gpu.sh OUT  # there: installs them from DIR
#
# Stop it at any point: what has been written stays. A step that fails does not end the
# others; OUT/steps.tsv has a line for each: its name, exit status and seconds.
set -uo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python}

if [ "${1:-}" = --wheels ]; then
  # Small packages that images with JAX for GPUs do not have; JAX itself is there.
  exec "$PYTHON" -m pip download --no-deps --only-binary :all: --dest "${2:?a folder}" \
    gymnax ml-collections tensorboardX jaxtyping wadler-lindig absl-py six \
    gymnasium farama-notifications cloudpickle seaborn
fi

OUT=${1:?usage: benchmarks/on_gpu.sh OUT, or --wheels DIR}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
if [ -n "${WHEELS:-}" ]; then
  "$PYTHON" -m pip install --no-deps --no-index "$WHEELS"/*.whl > "$OUT/wheels.log" 2>&1 \
    || { echo "the wheels of $WHEELS cannot be installed: see $OUT/wheels.log" >&2; exit 2; }
fi
nvidia-smi > "$OUT/gpu.txt" 2>&1 || { echo "there is no NVIDIA GPU here" >&2; exit 2; }

step() {  # name, seconds at most, command
  local name=$1 limit=$2 began=$SECONDS status=0
  shift 2
  echo "$name ..."
  timeout "$limit" "$@" > "$OUT/$name.log" 2>&1 || status=$?
  printf '%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - began))" | tee -a "$OUT/steps.tsv"
}

benchmark() {  # name, seconds at most, module, flags
  local name=$1 limit=$2 module=$3
  shift 3
  step "$name" "$limit" "$PYTHON" -m "benchmarks.$module" --json="$OUT/$name.json" "$@"
}

PAPER=--presets=qwen2.5-0.5b,grpo
benchmark parity 180 gpu_parity
benchmark iteration_100 240 iteration "$PAPER" --reply_tokens=100 --repeats=3
benchmark update 150 update --presets=qwen2.5-0.5b --repeats=3
benchmark decode_ragged 150 decode_ragged
benchmark iteration_400 240 iteration "$PAPER" --reply_tokens=400 --repeats=2
benchmark attention 60 attention --shape=qwen2.5-0.5b
# Peak memory beside what the plan says of the same programs.
step plan 120 "$PYTHON" -m launch.plan --config=configs/sokoban.py:qwen2.5-0.5b --compile --nosearch
benchmark envs 120 envs
step learning 300 "$PYTHON" -m launch.train --config=configs/sokoban.py \
  --workdir="$OUT/learning" --config.train.num_iterations=20
