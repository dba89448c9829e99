#!/usr/bin/env bash
# What the surroundings do to a run: standard streams that cannot be written, signals, file systems without locks, a limit
# on the size of files, and a resumed run that has passed the end asked for.
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
printf 'P5 2 2 255\n\xff\xff\xff\xff' >"$work/light.pgm"

# faulty FAULT COMMAND...: one standard stream, or all, are closed, full or gone: a pipe that nobody reads any more.
exec {gone}> >(:)
wait $!
faulty() {
  local fault=$1
  shift
  case $fault in
    closed-stdout) "$@" >&- ;;
    closed-stderr) "$@" 2>&- ;;
    closed-streams) "$@" <&- >&- 2>&- ;;
    full-stdout) "$@" >/dev/full ;;
    full-stderr) "$@" 2>/dev/full ;;
    gone-stdout) "$@" >&"$gone" ;;
    gone-stderr) "$@" 2>&"$gone" ;;
    gone-streams) "$@" >&"$gone" 2>&1 ;;
  esac
}
# code CODE FAULT COMMAND...: it ends with CODE. What reaches the other stream is kept.
code() {
  local status=0
  faulty "${@:2}" >"$work/stdout" 2>"$work/stderr" || status=$?
  [ "$status" = "$1" ] || { echo "status $status, wanted $1"; return 1; }
}
# is_run DIR STEPS: a run of so many steps lies there, which goes on, and nothing that is printed came into its files.
is_run() {
  [ "$(losses "$1/metrics.jsonl" | wc -l)" = "$2" ] && ! grep -qv '^{"event":' "$1/metrics.jsonl" && [ -s "$1/model.safetensors" ] &&
    "$cuttle" train --resume "$1" --steps $(($2 + 1)) >/dev/null 2>&1
}
# new_run CODE FAULT STEPS FLAGS...: what it says on stderr comes after the former run was moved.
new_run() {
  local out=$work/new
  rm -rf "$out" && cp -r "$work/done" "$out"
  code "$1" "$2" "$cuttle" train "${small[@]}" --epochs 3 --out "$out" "${@:4}" && is_run "$out" "$3" && is_run "$out/previous" 6
}
longer_run() {
  rm -rf "$work/longer" && cp -r "$work/done" "$work/longer"
  code 0 "$1" "$cuttle" train --resume "$work/longer" --epochs 4 && is_run "$work/longer" 8
}
says() { grep -qF -- "$1" "$work/stderr"; }

evaluates=(eval --weights "$work/done" --data synthetic)
predicts=(predict --weights "$work/done" "$work/light.pgm")
times=(bench --size 8 --batch 8 --steps 1)
for fault in closed full gone; do
  check "stderr $fault: a run over another one" new_run 0 $fault-stderr 6
  check "stderr $fault: a longer run" longer_run $fault-stderr
  for command in evaluates predicts times; do
    declare -n words=$command
    check "stderr $fault: ${words[0]}" code 0 $fault-stderr "$cuttle" "${words[@]}"
    check "and its output arrives" test -s "$work/stdout"
  done
  check "stderr $fault: a usage error" code 2 $fault-stderr "$cuttle" trian
  check "stderr $fault: missing data" code 4 $fault-stderr "$cuttle" train --data "$work/nowhere"

  # Of the commands whose work is what they print.
  check "stdout $fault: eval" code 1 $fault-stdout "$cuttle" "${evaluates[@]}"
  check "is said" says "cuttle: stdout cannot be written"
  check "stdout $fault: predict" code 1 $fault-stdout "$cuttle" "${predicts[@]}" --json
  check "is said" says "cuttle: stdout cannot be written"
  check "stdout $fault: bench" code 1 $fault-stdout "$cuttle" "${times[@]}"
  check "is said" says "cuttle: stdout cannot be written"
done
for json in "" --json; do
  for fault in closed full; do
    check "stdout $fault: a run $json goes on to its end" new_run 0 $fault-stdout 6 $json
    check "and says what is lost" says "stdout cannot be written"
  done
  check "all streams closed: a run $json" new_run 0 closed-streams 6 $json
  check "stdout without a reader: a run $json is saved and ends" new_run 1 gone-stdout 0 $json
  check "and says how to go on" says "hint: to go on: $cuttle train --resume"
  check "all streams without a reader: the same" new_run 1 gone-streams 0 $json
done

# stopped_by SIGNAL CODE [FAULT]: a run that is sent SIGNAL saves, tells its end as JSON, ends with CODE and can go on.
stopped_by() {
  local out=$work/$1$2${3:-} line step status=0
  coproc run { ${3:+faulty "$3"} exec "$cuttle" train "${endless[@]}" --out "$out" --json 2>"$work/stderr"; }
  local pid=$run_PID
  read -r line <&"${run[0]}"
  kill "-$1" "$pid"
  cat <&"${run[0]}" >"$work/said"
  wait "$pid" || status=$?
  [ "$status" = "$2" ] || { echo "status $status, wanted $2"; return 1; }
  [ -n "${3:-}" ] || says "finishing this step, then saving" || return 1
  tail -n 1 "$work/said" | grep -q '"event":"end","ending":"interrupted"' || return 1
  step=$(tail -n 1 "$work/said" | sed -E 's/.*"step":([0-9]+).*/\1/')
  is_run "$out" "$step"
}
check "Ctrl-C saves, and the code says so" stopped_by INT 130
check "a terminate signal does the same" stopped_by TERM 143
check "and a hang-up" stopped_by HUP 129
for fault in closed full gone; do
  check "stderr $fault: Ctrl-C saves" stopped_by INT 130 $fault-stderr
done

# Commands that keep nothing are simply ended.
ended_by() {
  local status=0
  env --default-signal="$1" "$cuttle" bench --size 8 --device cpu --steps 1000000000 >"$work/stdout" 2>"$work/stderr" &
  until [ "/proc/$!/exe" -ef "$cuttle" ]; do kill -0 $! || return 1; done
  kill "-$1" $!
  wait $! || status=$?
  [ "$status" = "$2" ] && [ ! -s "$work/stderr" ]
}
check "Ctrl-C ends bench" ended_by INT 130
check "and so does a terminate signal" ended_by TERM 143
check "and a hang-up" ended_by HUP 129

# Ctrl-C ends `| tee` too, and with it both streams.
with_its_reader() {
  local out=$work/tee line status=0
  coproc run { exec "$cuttle" train "${endless[@]}" --out "$out" 2>&1; }
  local pid=$run_PID
  read -r line <&"${run[0]}"
  read -r line <&"${run[0]}"
  kill -INT "$pid"
  exec {run[0]}<&-
  wait "$pid" || status=$?
  [ "$status" = 130 ] && "$cuttle" train --resume "$out" --steps 100 >/dev/null 2>&1
}
check "Ctrl-C that ends the reader of both streams too" with_its_reader

hang_up_ignored() {
  local line
  coproc run { trap '' HUP && exec "$cuttle" train "${small[@]}" --epochs 3 --out "$work/nohup" --json 2>"$work/stderr"; }
  local pid=$run_PID
  read -r line <&"${run[0]}"
  kill -HUP "$pid"
  cat <&"${run[0]}" >"$work/said"
  wait "$pid" && tail -n 1 "$work/said" | grep -q '"ending":"finished"'
}
check "a hang-up under nohup changes nothing" hang_up_ignored

# A pipe that is full from the start: nobody reads what is printed.
unread() {
  local out=$work/unread line= status=0
  cp -r "$work/done" "$out"
  mkfifo "$work/full" "$work/errors"
  exec {full}<>"$work/full" {errors}<>"$work/errors"
  head -c 65536 /dev/zero >&"$full"
  "$cuttle" train "${endless[@]}" --out "$out" >&"$full" 2>&"$errors" &
  until [[ $line == *"is now in $out/previous" ]]; do read -r line <&"$errors"; done
  kill -TERM $!
  wait $! || status=$?
  exec {full}>&- {errors}>&-
  [ "$status" = 143 ] && is_run "$out" 0 && is_run "$out/previous" 6
}
check "a signal saves a run whose reader does not read" unread

# The run waits for what a pipe in place of its log of steps will say, so that only the second signal can end it.
twice() {
  local out=$work/twice line= status=0
  cp -r "$work/done" "$out"
  rm "$out/metrics.jsonl"
  mkfifo "$out/metrics.jsonl" "$work/said-on-stderr"
  exec {errors}<>"$work/said-on-stderr"
  "$cuttle" train --resume "$out" --epochs 100 >"$work/stdout" 2>&"$errors" &
  local pid=$!
  exec {log}>"$out/metrics.jsonl" # goes on once the run has opened it
  kill -INT "$pid"
  until [[ $line == finishing* ]]; do read -r line <&"$errors"; done
  kill -INT "$pid"
  wait "$pid" || status=$?
  exec {log}>&- {errors}>&-
  [ "$status" = 130 ] && [ -p "$out/metrics.jsonl" ]
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

# File systems that cannot lock, as a run sees them.
cannot_lock() {
  local library=$work/$1.so
  ${CC:-cc} -shared -fPIC -x c - -o "$library" <<<"#include <errno.h>
    int flock(int file, int operation) { return errno = $1, -1; }" || return 1
  shift
  LD_PRELOAD=$library "$@"
}
for error in ENOLCK ENOSYS EOPNOTSUPP; do
  check "a file system without locks ($error)" \
    ends 0 "nothing guards $work/$error against a second run" cannot_lock $error "$cuttle" train "${small[@]}" --steps 1 --out "$work/$error"
  check "costs one line" test "$(wc -l <"$work/stderr")" = 1
  check "and the run is whole" is_run "$work/$error" 1
done
check "any other fault of the lock is reported" \
  ends 1 "the folder $work/EIO cannot be prepared" cannot_lock EIO "$cuttle" train "${small[@]}" --out "$work/EIO"
check "in two lines" two_lines

# limited KIB COMMAND...: files may grow to so many KiB.
limited() { (ulimit -f "$1" && shift && "$@"); }
check "a limit on the size of files" ends 1 "ulimit -f" limited 64 "$cuttle" train "${small[@]}" --out "$work/limited"
check "is reported in two lines" two_lines
check "and leaves nothing half-written" test -z "$(find "$work/limited" -name '*.tmp')"
keeps_the_old_run() {
  find "$work/done" -type f -exec cksum {} + | sort >"$work/before"
  ends 1 "ulimit -f" limited 64 "$cuttle" train "${small[@]}" --out "$work/done" || return 1
  ends 1 "ulimit -f" limited 64 "$cuttle" train --resume "$work/done" --epochs 4 || return 1
  find "$work/done" -type f -exec cksum {} + | sort | diff "$work/before" -
}
check "and the old run as it was" keeps_the_old_run
# The log of steps, with a line as long as the state, is the file that meets the limit.
in_the_middle() {
  local out=$work/middle size
  cp -r "$work/done" "$out"
  size=$(stat -c %s "$out/state/checkpoint.safetensors")
  { printf "%${size}s" && cat "$work/done/metrics.jsonl"; } >"$out/metrics.jsonl"
  size=$(stat -c %s "$out/metrics.jsonl")
  ends 1 "$out/metrics.jsonl cannot be written" limited $((size / 1024 + 2)) "$cuttle" train --resume "$out" --epochs 100 &&
    "$cuttle" train --resume "$out" --epochs 5
}
check "a limit that a run meets on its way" in_the_middle
finish
