#!/usr/bin/env bash
# What the surroundings do to a run: signals, a resumed run that has passed the end asked for.
# usage: faults_test.sh BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/checks.sh
. tests/command.sh
cuttle=$PWD/$1/cuttle
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# LeNet on synthetic 8x8 images, 2 steps an epoch.
small=(--data synthetic --size 8 --batch 1024 --device cpu --threads 2)
endless=("${small[@]}" --epochs 100000 --schedule constant)
"$cuttle" train "${small[@]}" --epochs 3 --out "$work/done" >"$work/log" 2>&1 || cat "$work/log"

# stopped_by SIGNAL CODE: a run that is sent SIGNAL saves, tells its end as JSON, ends with CODE and can be resumed.
stopped_by() {
  local out=$work/$1 line step status=0
  coproc run { exec "$cuttle" train "${endless[@]}" --out "$out" --json 2>"$work/stderr"; }
  local pid=$run_PID
  read -r line <&"${run[0]}"
  kill "-$1" "$pid"
  cat <&"${run[0]}" >"$work/said"
  wait "$pid" || status=$?
  [ "$status" = "$2" ] || { echo "status $status, wanted $2"; return 1; }
  grep -qF "finishing this step, then saving" "$work/stderr" || return 1
  tail -n 1 "$work/said" | grep -q '"event":"end","ending":"interrupted"' || return 1
  test -s "$out/model.safetensors" || return 1
  step=$(tail -n 1 "$work/said" | sed -E 's/.*"step":([0-9]+).*/\1/')
  "$cuttle" train --resume "$out" --steps $((step + 1))
}
check "Ctrl-C saves, and the code says so" stopped_by INT 130
check "a terminate signal does the same" stopped_by TERM 143
check "and a hang-up" stopped_by HUP 129

# What a shell does after `nohup`: the signal is ignored from the start.
hang_up_ignored() {
  local status=0 line
  coproc run { trap '' HUP && exec "$cuttle" train "${small[@]}" --epochs 3 --out "$work/nohup" --json 2>"$work/stderr"; }
  local pid=$run_PID
  read -r line <&"${run[0]}"
  kill -HUP "$pid"
  cat <&"${run[0]}" >"$work/said"
  wait "$pid" && tail -n 1 "$work/said" | grep -q '"ending":"finished"'
}
check "a hang-up under nohup changes nothing" hang_up_ignored

# The run waits for a reader of its stdout that never reads, so that only the second signal can end it.
twice() {
  local out=$work/twice line= status=0
  cp -r "$work/done" "$out"
  mkfifo "$work/full" "$work/errors"
  exec {full}<>"$work/full" {errors}<>"$work/errors"
  head -c 65536 /dev/zero >&"$full"
  "$cuttle" train "${endless[@]}" --out "$out" >&"$full" 2>&"$errors" &
  local pid=$!
  until [[ $line == *"is now in $out/previous" ]]; do read -r line <&"$errors"; done
  kill -INT "$pid"
  until [[ $line == finishing* ]]; do read -r line <&"$errors"; done
  kill -INT "$pid"
  wait "$pid" || status=$?
  exec {full}>&- {errors}>&-
  [ "$status" = 130 ] && [ ! -e "$out/model.safetensors" ]
}
check "a second Ctrl-C ends at once" twice

# refused FLAG NUMBER DONE: resuming the run of 3 epochs is a usage error that names both, and its state stays as it was.
refused() {
  cksum "$work/done/state/checkpoint.safetensors" >"$work/before"
  ends 2 "$1 $2 is too few: the run has done $3" "$cuttle" train --resume "$work/done" "$1" "$2" && two_lines || return 1
  cksum "$work/done/state/checkpoint.safetensors" | diff "$work/before" -
}
check "fewer epochs than are done" refused --epochs 2 "3 epochs"
check "fewer steps than are done" refused --steps 5 "6 steps"
inside_epoch() {
  "$cuttle" train "${small[@]}" --epochs 3 --steps 3 --out "$work/inside" >"$work/log" 2>&1 || return 1
  ends 2 "the run has done 1 epoch and 1 step" "$cuttle" train --resume "$work/inside" --epochs 1 &&
    "$cuttle" train --resume "$work/inside" --epochs 2
}
check "an end in the epoch that is half done" inside_epoch
check "as many epochs as are done" "$cuttle" train --resume "$work/done" --epochs 3
finish
