# shellcheck shell=bash
# For the shell tests of the command: they set `cuttle` to it and `work` to a folder of their own, and source this.

# ends CODE TEXT COMMAND...: the command ends with CODE, writes TEXT to stderr, and nothing that looks like C++.
ends() {
  local code=$1 text=$2 status=0
  shift 2
  "$@" >"$work/stdout" 2>"$work/stderr" || status=$?
  if [ "$status" != "$code" ] || ! grep -qF -- "$text" "$work/stderr" || grep -qE 'terminate|what\(\)|std::' "$work/stderr"; then
    printf 'status %s, wanted %s and "%s"\n' "$status" "$code" "$text"
    cat "$work/stderr"
    return 1
  fi
}

# Errors: one line of cause, one of remedy.
two_lines() { [ "$(wc -l <"$work/stderr")" = 2 ] && grep -q '^cuttle: ' "$work/stderr" && grep -q '^  hint: ' "$work/stderr"; }

losses() { sed -nE 's/^\{"event":"step","epoch":([0-9]+),"step":([0-9]+),.*"loss":([^,]+),.*/\1 \2 \3/p' "$@"; }

# killed_and_resumed WHOLE OUT AFTER FLAGS...: a run into OUT is killed after so many events and resumed; its losses are
# those of the uninterrupted run in WHOLE.
killed_and_resumed() {
  local whole=$1 out=$2 after=$3 pid line n=0
  shift 3
  coproc run { exec "$cuttle" train "$@" --out "$out" --json 2>/dev/null; }
  pid=$run_PID
  while [ $n -lt "$after" ] && read -r line <&"${run[0]}"; do n=$((n + 1)); done
  kill -9 "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  "$cuttle" train --resume "$out" --json >/dev/null 2>"$work/stderr" || { cat "$work/stderr"; return 1; }
  diff <(losses "$whole/metrics.jsonl") <(losses "$out/metrics.jsonl")
}
