#!/usr/bin/env bash
# Compiles each public header alone, and reports what it costs whoever includes it, in processor time.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/checks.sh

cost=$(mktemp)
trap 'rm -f "$cost"' EXIT

parse() {
  local TIMEFORMAT=%U
  { time "${CXX:-c++}" -std=c++20 -Iinclude -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ - \
    <<<"#include \"$1\"" 2>&3; } 3>&2 2>"$cost"
}

costs=
for path in include/cuttle/*.hpp; do
  header=${path#include/}
  check "$header compiles alone" parse "$header"
  costs+="        $(cat "$cost") s  $header"$'\n'
done
printf 'parse times:\n%s' "$costs"
finish
