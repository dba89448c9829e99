#!/usr/bin/env bash
# The command line as scripts see it: exit codes, messages, JSON, and runs that are killed and resumed.
# usage: cli_test.sh BUILD_DIR
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/checks.sh
. tests/command.sh
cuttle=$PWD/$1/cuttle
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A model small enough for every check: LeNet on synthetic 8x8 images, 8 steps an epoch.
small=(--data synthetic --size 8 --batch 256 --device cpu --threads 2)

for command in train eval predict bench doctor; do
  check "$command --help" "$cuttle" $command --help
done
check "no command" ends 2 "cuttle --help" "$cuttle"
check "unknown command" ends 2 "did you mean train?" "$cuttle" trian
check "unknown flag" ends 2 "did you mean --epochs?" "$cuttle" train --epoch 3
check "its message is cause and remedy" two_lines
check "unknown model" ends 2 "lenet" "$cuttle" train --model lenett "${small[@]}"
check "unknown device" ends 2 "tpu" "$cuttle" train --device tpu
for command in "train --data synthetic" bench "eval --weights none" "predict --weights none --index 0"; do
  check "${command%% *} on a GPU that is not there" ends 2 "--device cuda:99" "$cuttle" $command --device cuda:99
done
for command in "train --data synthetic --out $work/none" bench; do
  check "${command%% *} with images too small for the model" ends 2 "--size 2" "$cuttle" $command --size 2 --device cpu
done
check "nothing is written then" test ! -e "$work/none"
# ours FLAG VALUE ALLOWED: the message names the flag, the value and what is allowed, in our words.
ours() { ends 2 "cuttle: $1 '$2' is not possible" "$cuttle" train "${small[@]}" --out "$work/none" $1 "$2" && grep -qF "hint: it takes $3" "$work/stderr"; }
check "a number that is none" ours --batch many "a whole number"
check "a fraction of an epoch" ours --epochs 1.5 "a whole number"
check "more threads than an int holds" ours --threads 99999999999 "a whole number"
check "a negative seed" ours --seed -1 "a whole number of at least 0"
check "a rate that is none" ours --lr fast "a number"
check "a negative seed after =" ends 2 "cuttle: --seed '-1' is not possible" "$cuttle" train --seed=-1
check "more threads than there can be" ends 2 "--threads 10000" "$cuttle" bench --threads 10000
check "more than 64 bits" ours --steps 99999999999999999999 "a whole number"
check "more than 64 bits of seed" ours --seed 99999999999999999999 "a whole number of at least 0"
for flag in resume out data weights memory-limit epochs lr seed; do
  check "--$flag without a value" ends 2 "cuttle: --$flag is given without a value" "$cuttle" train "${small[@]}" --$flag ""
done
lost() { "$@" >/dev/full; }
for command in doctor --help "train --help"; do
  check "output of $command that is lost" ends 1 "stdout cannot be written" lost "$cuttle" $command
done
closed() { "$@" >&-; }
check "a closed stdout" ends 1 "stdout cannot be written" closed "$cuttle" doctor
for command in train bench "eval --weights none"; do
  check "${command%% *} --batch auto is not there yet" ends 2 "this version" "$cuttle" $command --batch auto
done
check "recomputation is not there yet" ends 2 "this version" "$cuttle" train "${small[@]}" --recompute blocks
check "nor is a kind of it that never was" ends 2 "'some' is not known" "$cuttle" bench --recompute some
check "batch 0" ends 2 "--batch 0" "$cuttle" train "${small[@]}" --batch 0
for flag in epochs accumulate batch steps size warmup; do
  check "--$flag beyond all measure" ends 2 "--$flag" "$cuttle" train "${small[@]}" --$flag 9223372036854775807 --out "$work/none"
done
check "batch above the set" ends 2 "2048 images" "$cuttle" train "${small[@]}" --batch 2049 --out "$work/none"
check "nothing is written then" test ! -e "$work/none"
check "negative size" ends 2 "--memory-limit" "$cuttle" train "${small[@]}" --memory-limit -5
check "a size without sense" ends 2 "64MiB" "$cuttle" train "${small[@]}" --memory-limit 3furlongs
check "mixed precision needs a GPU" ends 2 "needs a GPU" "$cuttle" train "${small[@]}" --device cpu --precision fp16
check "missing data" ends 4 "$work/nowhere" "$cuttle" train --data "$work/nowhere"
check "missing weights" ends 4 "$work/nowhere" "$cuttle" eval --weights "$work/nowhere"
check "missing state" ends 4 "there is no run in $work/nowhere" "$cuttle" train --resume "$work/nowhere"
check "the limit holds from the first allocation" ends 3 " 0 B reserved of a limit of 1 B" "$cuttle" train "${small[@]}" --memory-limit 1 --out "$work/oom"
check "out of memory" ends 3 "--memory-limit" "$cuttle" train "${small[@]}" --memory-limit 3MiB --out "$work/oom"
check "its message is cause and remedy" two_lines
touch "$work/file"
check "an output folder that cannot be made" ends 1 "$work/file" "$cuttle" train "${small[@]}" --out "$work/file/run"
check "an output folder without room" ends 1 "/dev/full" "$cuttle" train "${small[@]}" --out /dev/full
check "divergence in the last step" ends 1 "after step 1" "$cuttle" train "${small[@]}" --batch 2048 --epochs 1 --lr 1e30 \
  --schedule constant --out "$work/last"
check "leaves no model" test ! -e "$work/last/model.safetensors"
check "divergence" ends 1 "at step" "$cuttle" train "${small[@]}" --lr 1e30 --schedule constant --out "$work/nan"

# json_lines FILE: every line is an object with an event.
json_lines() { [ -s "$1" ] && ! grep -qvE '^\{"event":"(start|step|epoch|end)",.*\}$' "$1"; }

"$cuttle" train "${small[@]}" --epochs 3 --recompute none --deterministic --out "$work/whole" --json >"$work/whole.jsonl" 2>"$work/log" || true
check "--json writes events and nothing else" json_lines "$work/whole.jsonl"
check "a step event for each step" test "$(losses "$work/whole.jsonl" | wc -l)" = 24
for key in epoch train_loss train_accuracy test_loss test_accuracy images_per_s seconds peak_allocated_bytes peak_reserved_bytes; do
  check "epoch events have $key" grep -qE "^\{\"event\":\"epoch\",.*\"$key\":[0-9]" "$work/whole.jsonl"
done
for key in best_test_accuracy test_accuracy out files; do
  check "the end event has $key" grep -qE "^\{\"event\":\"end\",.*\"$key\":" "$work/whole.jsonl"
done
# A flag that the state forgot would fall back to its default on resume.
flags_without_setting() {
  local flag
  "$cuttle" train --help | grep -oE '^ +--[a-z0-9-]+' | tr -d ' ' | while read -r flag; do
    case $flag in --help | --out | --resume | --json | --deterministic | --recompute | --memory-limit | --workspace-limit | --no-graph) continue ;; esac
    grep -qF "\"${flag#--}\":" <(head -n 1 "$work/whole.jsonl" | sed 's/.*"config"://') || echo "$flag"
  done
}
check "--help lists the flags" grep -qE '^ +--weight-decay' <("$cuttle" train --help)
check "every other flag of train is a setting of the run" test -z "$(flags_without_setting)"
for file in model.safetensors state/checkpoint.safetensors metrics.jsonl report.html; do
  check "the run leaves $file" test -s "$work/whole/$file"
  check "and names it" grep -qF "$file\"" <(tail -n 1 "$work/whole.jsonl")
done

# Killed after a few steps, at a different place of the step, the saving and the evaluation each time, and resumed.
for after in 2 5 9 10 13 19; do
  check "killed after $after events and resumed: the same losses" \
    killed_and_resumed "$work/whole" "$work/killed$after" "$after" "${small[@]}" --epochs 3
done

interrupted() {
  local out=$1 pid line
  coproc run { exec "$cuttle" train "${small[@]}" --epochs 3 --out "$out" 2>/dev/null; }
  pid=$run_PID
  read -r line <&"${run[0]}"
  kill -INT "$pid"
  cat <&"${run[0]}" >"$work/said"
  wait "$pid" && return 1
  [ $? = 130 ] || return 1
  local again
  again=$(sed -n 's/^to go on: //p' "$work/said")
  [ -n "$again" ] && eval "$again" >/dev/null 2>&1 && diff <(losses "$work/whole/metrics.jsonl") <(losses "$out/metrics.jsonl")
}
check "Ctrl-C saves, ends with 130, and the command it prints goes on" interrupted "$work/interrupted"

cp -r "$work/interrupted" "$work/longer"
check "more epochs change the rate, and that is said" ends 0 "schedule now spans 4 epochs, not 3: lr was" \
  "$cuttle" train --resume "$work/longer" --epochs 4
# The reader goes away after the first event: the run stops, saved, and that is a failure.
reader_gone() {
  local status=0
  coproc run { exec "$cuttle" train "${small[@]}" --epochs 1000 --schedule constant --out "$work/reader" --json 2>"$work/stderr"; }
  local pid=$run_PID line
  read -r line <&"${run[0]}"
  read -r line <&"${run[0]}"
  exec {run[0]}<&-
  wait "$pid" || status=$?
  [ "$status" = 1 ] && grep -qF "stdout cannot be written" "$work/stderr" && test -s "$work/reader/model.safetensors"
}
check "a reader that goes away ends the run, which is saved" reader_gone

check "resume with another rate" ends 2 "--lr was 0.05 and is now 0.1" "$cuttle" train --resume "$work/whole" --lr 0.1
check "resume with another model" ends 4 "--model was" "$cuttle" train --resume "$work/whole" --model resnet18
head -c 1000 "$work/whole/state/checkpoint.safetensors" >"$work/nan/state/checkpoint.safetensors"
check "resume of a truncated state" ends 4 "$work/nan/state/checkpoint.safetensors" "$cuttle" train --resume "$work/nan"

# A file-size limit stands for a full disk: writing fails half-way.
full_disk() {
  cksum "$work/whole/state/checkpoint.safetensors" "$work/whole/model.safetensors" >"$work/before"
  (trap '' XFSZ && ulimit -f 64 && ends 1 "whole" "$cuttle" train "${small[@]}" --out "$work/whole") || return 1
  cksum "$work/whole/state/checkpoint.safetensors" "$work/whole/model.safetensors" | diff "$work/before" -
  "$cuttle" train --resume "$work/whole" >/dev/null 2>&1
}
check "a full disk is found out, and the last good state survives" full_disk

# A new run in the folder of another: that one is kept, whole, and can still be resumed.
kept_as_previous() {
  cp -r "$work/whole" "$work/twice"
  "$cuttle" train "${small[@]}" --steps 2 --out "$work/twice" --json 2>"$work/stderr" | grep -q '"event":"end"' || return 1
  grep -qF "$work/twice/previous" "$work/stderr" || return 1
  local file
  for file in model.safetensors state/checkpoint.safetensors metrics.jsonl report.html; do
    cmp "$work/whole/$file" "$work/twice/previous/$file" && test -s "$work/twice/$file" || return 1
  done
  [ "$(losses "$work/twice/metrics.jsonl" | wc -l)" = 2 ] && "$cuttle" train --resume "$work/twice/previous" >/dev/null 2>&1
}
check "a new run keeps the one in its folder as previous" kept_as_previous

same_accuracy() {
  local from_training from_eval
  from_training=$(tail -n 1 "$work/whole.jsonl" | sed -E 's/.*"test_accuracy":([^,]+),.*/\1/')
  from_eval=$("$cuttle" eval --weights "$work/whole" --data synthetic --deterministic --json 2>/dev/null | sed -E 's/.*"test_accuracy":([^,]+),.*/\1/')
  [ -n "$from_eval" ] && [ "$from_training" = "$from_eval" ]
}
check "eval finds the accuracy that training ended with" same_accuracy
check "weights of another model" ends 4 "lenet" "$cuttle" eval --weights "$work/whole" --data synthetic --model resnet18

printf 'P5 3 2 255\n\x01\x02\x03\x04\x05\x06' >"$work/tiny.pgm"
predicts() {
  "$cuttle" predict --weights "$work/whole" "$work/tiny.pgm" --top 2 --deterministic --json 2>/dev/null >"$work/stdout"
  grep -qE '^\{"file":".*tiny.pgm","top":\[\{"class":"[^"]+","probability":[0-9.e-]+\},\{[^{]*\}\]\}$' "$work/stdout"
}
check "predict --json" predicts
check "predict --show draws the picture" grep -q '[▀▄█ ]' <("$cuttle" predict --weights "$work/whole" "$work/tiny.pgm" --show --invert)
check "a picture that is none" ends 4 "$work/file" "$cuttle" predict --weights "$work/whole" "$work/file"
check "nothing to predict" ends 2 "--index" "$cuttle" predict --weights "$work/whole"

bench_keys() {
  local key
  "$cuttle" bench --size 28 --batch 8 --steps 2 --recompute none --deterministic --json >"$work/stdout" 2>/dev/null
  for key in model batch precision layout conv graph ms spread img_s peak_allocated_bytes peak_reserved_bytes first_step_s; do
    grep -q "\"$key\":" "$work/stdout" || { echo "no $key"; return 1; }
  done
}
check "bench --json" bench_keys
bench_says() {
  local text=$1
  shift
  "$cuttle" bench --batch 8 --steps 1 --json "$@" 2>/dev/null | grep -qF -- "$text"
}
check "bench has its resident memory" bench_says '"peak_rss_bytes":'
check "bench names the precision asked for" bench_says '"precision":"tf32"' --precision tf32
check "bench takes images of a data set" bench_says '"data":"mnist"' --data data/mnist
check "bench lists the blocks of the peak" bench_says '"at_peak":[{"bytes":' --at-peak
check "bench on data that is not there" ends 4 "$work/nowhere" "$cuttle" bench --data "$work/nowhere"
check "bench with a batch above the set" ends 2 "60000 images" "$cuttle" bench --data data/mnist --batch 60001
for command in bench "train --data synthetic --out $work/none"; do
  # shellcheck disable=SC2086
  check "a batch of one image for a model that cannot learn from it: ${command%% *}" ends 2 "--batch 1 is not possible for resnet18" \
    "$cuttle" $command --model resnet18 --size 28 --batch 1
done
check "doctor says why there is no GPU, or names it" grep -qE '"reason":"[^"]|"device":"cuda' <("$cuttle" doctor --json)
finish
