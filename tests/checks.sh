# shellcheck shell=bash
# Counting for the shell tests, which source this: check and skip count one result each; finish prints the totals as
# `N passed, N failed, N skipped` and ends with a status.

passed=0 failed=0 skipped=0
failures=()

fail() {
  failed=$((failed + 1))
  failures+=("$1")
}

# check NAME COMMAND...: passes if the command succeeds; its output is shown only if it does not.
check() {
  local name=$1 output
  shift
  if output=$("$@" 2>&1); then
    passed=$((passed + 1))
    printf 'ok      %s\n' "$name"
  else
    fail "$name"
    printf 'FAILED  %s\n%s\n' "$name" "$output"
  fi
}

skip() {
  skipped=$((skipped + 1))
  printf 'skipped %s: %s\n' "$1" "$2"
}

finish() {
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [ "$failed" = 0 ]
}
