#!/usr/bin/env bash
# The command on a GPU when things go wrong: no card, a full card, too small a limit, a library of the wrong kind, a run
# that is interrupted, killed or diverges. Without a GPU what needs one is skipped.
# usage: gpu_test.sh BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/checks.sh
. tests/command.sh
cuttle=$PWD/$1/cuttle
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

has_gpu=0
if "$cuttle" doctor --json 2>/dev/null | grep -q '"device":"cuda'; then has_gpu=1; fi
# on_gpu NAME COMMAND...: a check that needs a GPU.
on_gpu() { if [ $has_gpu = 1 ]; then check "$@"; else skip "$1" "there is no GPU"; fi; }

lenet=(--data synthetic --size 8 --batch 256)

# No card, or none of that number.
for visible in "" -1 77 nonsense; do
  hidden() { CUDA_VISIBLE_DEVICES=$visible "$@"; }
  check "CUDA_VISIBLE_DEVICES='$visible': auto computes on the CPU and says so" \
    ends 0 "no GPU is used: " hidden "$cuttle" bench --batch 8 --steps 1
  check "CUDA_VISIBLE_DEVICES='$visible': cuda is refused" ends 2 "--device cuda" hidden "$cuttle" bench --device cuda
  on_gpu "CUDA_VISIBLE_DEVICES='$visible': it is named as the cause" \
    ends 2 "CUDA_VISIBLE_DEVICES" hidden "$cuttle" bench --device cuda
done

# A library that is not what its name says. The loader takes the first libcudnn.so.9 of LD_LIBRARY_PATH.
fake_cudnn() { # fake_cudnn FOLDER C-SOURCE
  mkdir -p "$work/$1" && ${CC:-cc} -shared -fPIC -x c - -o "$work/$1/libcudnn.so.9" <<<"$2"
}
with_cudnn_of() { local folder=$1; shift; LD_LIBRARY_PATH=$work/$folder:${LD_LIBRARY_PATH:-} "$@"; }
fake_cudnn hollow 'int nothing;'
fake_cudnn old 'unsigned long cudnnGetVersion(void) { return 8907; }'
mkdir -p "$work/empty" && touch "$work/empty/libcudnn.so.9"
for kind in hollow old empty; do
  on_gpu "a cuDNN that is $kind is named" ends 1 "$work/$kind/libcudnn.so.9" \
    with_cudnn_of $kind "$cuttle" bench --device cuda "${lenet[@]}" --steps 1
  on_gpu "and --conv gemm does without it" ends 0 "" \
    with_cudnn_of $kind "$cuttle" bench --device cuda "${lenet[@]}" --steps 1 --conv gemm
done
on_gpu "the version of an old one is named" ends 1 "8.9.7" \
  with_cudnn_of old "$cuttle" bench --device cuda "${lenet[@]}" --steps 1
tells_cudnn() { with_cudnn_of old "$cuttle" doctor | grep -qF "$work/old/libcudnn.so.9"; }
on_gpu "doctor names it too" tells_cudnn

# Too little memory, from nothing at all up to enough: out of memory in two lines, or a run. Nothing else.
too_little() {
  local limit status failures=0
  for limit in 1 100KiB 2MiB 16MiB 40MiB 64MiB 80MiB 96MiB 112MiB 128MiB 144MiB 160MiB 192MiB 256MiB 320MiB 384MiB 512MiB 1GiB 2GiB; do
    status=0
    "$cuttle" bench --device cuda --model resnet18_cifar --batch 64 --precision fp16 --steps 3 --memory-limit $limit \
      >"$work/stdout" 2>"$work/stderr" || status=$?
    case $status in
      0) [ $failures -gt 5 ] && return ;;
      3) two_lines && failures=$((failures + 1)) || { echo "limit $limit"; cat "$work/stderr"; return 1; } ;;
      *) echo "limit $limit: status $status"; cat "$work/stderr"; return 1 ;;
    esac
  done
  echo "it never ran, or never failed: $failures failures"
  return 1
}
on_gpu "every limit on memory gives a clear error or a run" too_little

# Another process holds all of the card but so many MiB.
occupied() {
  local leave=$1 pid ready
  shift
  coproc holder { exec python3 -c '
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    if getattr(cuda, name)(*arguments): sys.exit(name)
context, free, total, held = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
call("cuMemAlloc_v2", ctypes.byref(held), ctypes.c_size_t(free.value - (int(sys.argv[1]) << 20)))
print("ready", flush=True)
sys.stdin.read()' "$leave"; }
  pid=$holder_PID
  read -r ready <&"${holder[0]}" || return 1
  local status=0
  "$@" || status=$?
  kill "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  return $status
}
big=(bench --model resnet18 --batch 256 --precision fp16 --steps 2)
on_gpu "a card that another process has filled" occupied 2000 ends 3 "other processes hold" "$cuttle" "${big[@]}" --device cuda
on_gpu "is reported in two lines" two_lines
on_gpu "a card without room for a context" occupied 40 ends 3 "" "$cuttle" "${big[@]}" --device cuda
on_gpu "is reported in two lines too" two_lines

# Runs that end before they should, with the step recorded and replayed.
run=("${lenet[@]}" --device cuda --precision fp16 --deterministic --epochs 3)
if [ $has_gpu = 1 ]; then
  "$cuttle" train "${run[@]}" --out "$work/whole" --json >/dev/null 2>"$work/log" || cat "$work/log"
fi
for after in 2 5 9 10 13 19; do
  on_gpu "killed after $after events and resumed: the same losses" \
    killed_and_resumed "$work/whole" "$work/killed$after" "$after" "${run[@]}"
done

interrupted() {
  local out=$work/interrupted pid line n=0
  coproc run { exec "$cuttle" train "${run[@]}" --out "$out" --json 2>/dev/null; }
  pid=$run_PID
  while [ $n -lt 7 ] && read -r line <&"${run[0]}"; do n=$((n + 1)); done
  kill -INT "$pid"
  cat <&"${run[0]}" >/dev/null
  wait "$pid" || true
  [ "$(losses "$out/metrics.jsonl" | wc -l)" -lt 24 ] || { echo "it was not interrupted"; return 1; }
  "$cuttle" train --resume "$out" >/dev/null 2>"$work/stderr" || { cat "$work/stderr"; return 1; }
  diff <(losses "$work/whole/metrics.jsonl") <(losses "$out/metrics.jsonl")
}
on_gpu "Ctrl-C between recorded steps saves, and the run goes on with the same losses" interrupted

for precision in fp32 fp16 bf16; do
  on_gpu "divergence in $precision" ends 1 "at step" "$cuttle" train "${lenet[@]}" --device cuda --precision $precision \
    --lr 1e30 --schedule constant --out "$work/nan-$precision"
  on_gpu "leaves no model" test ! -e "$work/nan-$precision/model.safetensors"
done
finish
