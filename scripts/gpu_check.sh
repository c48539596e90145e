#!/usr/bin/env bash
# The device check: at most five minutes on a CUDA machine with PyTorch and transformers.
#
#   OUT=./gpu bash scripts/gpu_check.sh [DEVICE] [MODEL]
#
# DEVICE is the catalogue's name of the card, for the bounds (h200); MODEL the shape to run (llama-3.2-1b).
# Everything ends up in $OUT: log.txt, runs.jsonl, this-machine.toml, eager.json.gz, graph.json.gz.
# Each step has its own limit, and a step that fails does not stop the others; the exit status is that of the run.
set -u
cd "$(dirname "$0")/.." || exit 2
DEVICE=${1:-h200} MODEL=${2:-llama-3.2-1b} TOKENS=2048 ALL_S=290
OUT=${OUT:-./gpu}
mkdir -p "$OUT"
export GAMBREL_DATA=$OUT PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
exec > >(tee "$OUT/log.txt") 2>&1
step() { # step LIMIT_S NAME COMMAND…
  local limit=$1 name=$2 begin=$SECONDS left=$((ALL_S - SECONDS))
  shift 2
  [ $left -lt 5 ] && echo "=== $name: left out, no time" && return 1
  [ $left -lt "$limit" ] && limit=$left
  echo "=== $name"
  timeout "$limit" "$@"
  local status=$?
  echo "=== $name: status $status after $((SECONDS - begin)) s, $SECONDS s in all"
  return $status
}

nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.limit --format=csv,noheader
python3 -c "import torch, transformers; print('torch', torch.__version__, 'transformers', transformers.__version__)"

# 1. The run: prefill and decode, eager against the captured graph, counters meanwhile.
step 90 run python3 -m gambrel run "$MODEL" --on cuda:0 --dtype bf16 --prompt $TOKENS --context $TOKENS \
  --engine torch,graph --counters --device "$DEVICE"
status=$?

# 2. Each record against its bound, launches from the pair.
for id in $(python3 -c "import json; [print(json.loads(line)['id']) for line in open('$OUT/runs.jsonl')]"); do
  step 15 "compare $id" python3 -m gambrel compare "$MODEL" --run "$id" --device "$DEVICE"
done

# 3. This card's own ceilings, and the decode step against them.
step 75 calibrate python3 -m gambrel calibrate --device cuda:0 --quick --datasheet "$DEVICE" \
  -o "$OUT/this-machine.toml" --force
if [ -f "$OUT/this-machine.toml" ]; then
  step 15 "compare with the ceilings" python3 -m gambrel compare "$MODEL" --run last --device "$DEVICE" \
    --ceilings "$OUT/this-machine.toml"
fi

# 4. The same model under the profiler: eager, then replays of the captured decode step, told apart by the eager trace.
step 60 profile python3 -m gambrel profile "$MODEL" --on cuda:0 --dtype bf16 --prompt $TOKENS --context $TOKENS \
  --device "$DEVICE" --keep "$OUT/eager.json.gz"
step 45 "trace of the graph" python3 scripts/gpu_trace.py "$MODEL" $TOKENS "$OUT/graph.json.gz" &&
  step 20 "profile of the graph" python3 -m gambrel profile --trace "$OUT/graph.json.gz" \
    --eager "$OUT/eager.json.gz" --device "$DEVICE"
exit $status
