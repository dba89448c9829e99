#!/usr/bin/env bash
# The flags that choose how convolutions are computed: what is refused, what a run keeps, and what may change on resume.
# usage: algo_test.sh BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/checks.sh
. tests/command.sh
cuttle=$PWD/$1/cuttle
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset CUTTLE_CONV_ALGO CUDNN_CONV_ALGO_FWD CUDNN_CONV_ALGO_BWD_DATA CUDNN_CONV_ALGO_BWD_FILTER

small=(--data synthetic --size 8 --batch 256 --device cpu --threads 2)
# config KEY FILE: a setting in the start event of a run.
config() { sed -nE '1s/.*"config":(.*)\}$/\1/p' "$2" | grep -oE "\"$1\":(\[[^]]*\]|[^,}]*)" | cut -d: -f2-; }
has() { [ "$(config "$1" "$3")" = "$2" ] || { config "$1" "$3"; return 1; }; }

"$cuttle" train "${small[@]}" --epochs 1 --out "$work/run" >/dev/null 2>&1
commands=("train --data synthetic --out $work/none" bench "eval --weights $work/run --data synthetic" "predict --weights $work/run --data synthetic --index 0")
for command in "${commands[@]}"; do
  # shellcheck disable=SC2086
  refused() { ends 2 "$2" "$cuttle" $command --device cpu $1 && two_lines; }
  name=${command%% *}
  check "$name: an algorithm that does not exist" refused --algo=fwd=WINNOGRAD "'WINNOGRAD'"
  check "$name: the right ones are listed" grep -q 'WINOGRAD_NONFUSED.*engine:65.*gemm' "$work/stderr"
  check "$name: an algorithm of another pass" refused --algo=bwd_data=DIRECT "'DIRECT'"
  check "$name: a layer that does not exist" refused --algo=conv9.fwd=gemm "no convolution 'conv9'"
  check "$name: the right ones are listed" grep -q 'conv1, conv2' "$work/stderr"
  check "$name: a pass that does not exist" refused --algo=conv1.sideways=gemm "no convolution 'conv1.sideways'"
  for spec in = fwd fwd= =gemm "fwd=gemm|" "fwd=engine:" "fwd=engine:65,k2" "fwd=engine:99999999999999999999" "fwd=engine:-1"; do
    check "$name --algo '$spec'" refused "--algo=$spec" "--algo '"
  done
  check "$name: a policy that does not exist" refused --conv=fastest "choose from heuristic, measure, legacy, gemm"
  for limit in 0 -1 99999999; do
    check "$name --measure-limit $limit" refused "--measure-limit=$limit" "--measure-limit $limit is not possible"
  done
  for size in -1 -5MiB 9EiB 2000000GiB 1e300 nan inf 12furlongs; do
    check "$name --workspace-limit $size" refused "--workspace-limit=$size" "--workspace-limit "
  done
  check "$name --tf32-conv maybe" refused --tf32-conv=maybe "choose from on, off"
  check "$name --tf32-matmul maybe" refused --tf32-matmul=maybe "choose from on, off"
  # shellcheck disable=SC2086
  for variable in "CUTTLE_CONV_ALGO=fwd=WINNOGRAD" CUDNN_CONV_ALGO_FWD=8 CUDNN_CONV_ALGO_BWD_DATA=x CUDNN_CONV_ALGO_BWD_FILTER=-1; do
    check "$name with $variable" ends 2 "${variable%%=*}" env "$variable" "$cuttle" $command --device cpu
  done
done
check "nothing is written then" test ! -e "$work/none"
check "each value of --algo is one rule" ends 4 "gemm" "$cuttle" predict --weights "$work/run" --algo fwd=gemm gemm.png

start() { env "${@:2}" "$cuttle" train "${small[@]}" --steps 1 --out "$work/$1" --json >"$work/$1.jsonl" 2>"$work/stderr"; }
check "a run without flags" start plain
check "names no algorithm" has algo '[]' "$work/plain.jsonl"
check "and computes in fp32" has tf32-conv false "$work/plain.jsonl"
given() {
  CUTTLE_CONV_ALGO='conv1.bwd_filter=gemm;*=auto' CUDNN_CONV_ALGO_FWD=1,0 "$cuttle" train "${small[@]}" --steps 1 --json \
    --out "$work/given" --precision tf32 --tf32-matmul off --conv measure --measure-limit 3 --workspace-limit 0 --no-cudnn \
    --no-reduced-precision --algo 'conv1.fwd=gemm|auto' --algo conv2=auto >"$work/given.jsonl" 2>"$work/stderr"
}
check "a run with all of them" given
check "rules of the environment come first" has algo \
  '["*.forward=IMPLICIT_PRECOMP_GEMM|IMPLICIT_GEMM","conv1.backward_filter=gemm","*=auto","conv1.fwd=gemm|auto","conv2=auto"]' "$work/given.jsonl"
for pair in conv='"measure"' measure-limit=3 workspace-limit=0 no-cudnn=true no-reduced-precision=true tf32-conv=true tf32-matmul=false; do
  check "the run keeps $pair" has "${pair%%=*}" "${pair#*=}" "$work/given.jsonl"
done
check "the report shows them" grep -qF 'conv1.fwd=gemm|auto, conv2=auto' "$work/given/report.html"

resumed() { "$cuttle" train --resume "$work/given" --steps "$1" --json "${@:2}" >"$work/resumed.jsonl" 2>"$work/stderr"; }
check "it goes on" resumed 2
check "with what it was started with" has algo "$(config algo "$work/given.jsonl")" "$work/resumed.jsonl"
check "or with other algorithms and limits" resumed 3 --conv gemm --algo '*=auto' --measure-limit 5 --workspace-limit 1MiB --no-cudnn=false
for pair in conv='"gemm"' algo='["*=auto"]' measure-limit=5 workspace-limit=1048576 no-cudnn=false no-reduced-precision=true; do
  check "which are kept: $pair" has "${pair%%=*}" "${pair#*=}" "$work/resumed.jsonl"
done
check "the environment may change them too" env CUTTLE_CONV_ALGO=fwd=gemm "$cuttle" train --resume "$work/given" --steps 4
check "but not the precision" ends 2 "--tf32-conv was true and is now false" "$cuttle" train --resume "$work/given" --tf32-conv off
says() { "$cuttle" train "${small[@]}" --steps 1 --out "$work/says" "${@:2}" 2>/dev/null | grep -qF -- "$1"; }
check "what differs from the default is said" says 'convolutions: measure, 3 candidates, fwd=gemm, without cuDNN, deterministic, at most 64.00 MiB of workspace' \
  --conv measure --measure-limit 3 --algo fwd=gemm --no-cudnn --deterministic --workspace-limit 64MiB
finish
