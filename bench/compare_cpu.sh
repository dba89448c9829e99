#!/bin/sh
# Cuttle and PyTorch side by side on this CPU: LeNet and a small ResNet, in turn within one run, so that both meet the
# same load. Prints for each model the median of the rounds and the ratio (above 1: Cuttle is faster).
# usage: bench/compare_cpu.sh PYTHON [THREADS] [ROUNDS]     (PYTHON: an interpreter that has torch and numpy)
set -eu

if [ $# -lt 1 ]; then
  sed -n '2,4s/^# //p' "$0" >&2
  exit 2
fi
python=$1
threads=${2:-$(nproc)}
rounds=${3:-5}
root=$(cd "$(dirname "$0")/.." && pwd)
cuttle=$root/build/release/cuttle
if [ ! -x "$cuttle" ]; then
  echo "$cuttle is not built; run: cmake --preset release && cmake --build --preset release" >&2
  exit 1
fi
results=$(mktemp)
trap 'rm -f "$results"' EXIT

compare() { # model, batch, steps, data
  : >"$results"
  for _ in $(seq "$rounds"); do
    "$cuttle" bench --device cpu --model "$1" --batch "$2" --steps "$3" --threads "$threads" --data "$4" --json >>"$results"
    for layout in nhwc nchw; do
      "$python" "$root/bench/torch_lenet.py" --model "$1" --batch "$2" --steps "$3" --threads "$threads" \
        --layout "$layout" >>"$results"
    done
  done
  "$python" - "$results" "$threads" <<'PYTHON'
import json, statistics, sys

runs = [json.loads(line) for line in open(sys.argv[1])]
ours = [run for run in runs if "img_s" in run]
name = f'{ours[0]["model"]}, batch {ours[0]["batch"]}, {sys.argv[2]} threads'
speed = statistics.median(run["img_s"] for run in ours)
peak = max(run["peak_rss_bytes"] for run in ours)
print(f'{name:<40} {"images/s":>9} {"memory":>10}')
print(f'  {"Cuttle":<38} {speed:>9.0f} {peak / 2**20:>6.0f} MiB resident')
best = 0
for layout in ("NHWC", "NCHW"):
    theirs = [run for run in runs if "images_per_s" in run and run["layout"] == layout]
    other = statistics.median(run["images_per_s"] for run in theirs)
    best = max(best, other)
    peak = max(run["peak_rss_bytes"] for run in theirs)
    print(f'  PyTorch {theirs[0]["torch"]:<22} {layout:<7} {other:>9.0f} {peak / 2**20:>6.0f} MiB resident')
print(f'  {"ratio to the better":<38} {speed / best:>9.2f}')
PYTHON
}

compare lenet 128 40 "$root/data/mnist"
compare resnet18_cifar 128 3 synthetic
