#!/usr/bin/env bash
# Compiles each public header alone, and reports what it costs whoever includes it.
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/checks.sh

parse() {
  "${CXX:-c++}" -std=c++20 -Iinclude -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ - <<<"#include \"$1\""
}

times=
for path in include/cuttle/*.hpp; do
  header=${path#include/}
  start=${EPOCHREALTIME//[.,]/}
  check "$header compiles alone" parse "$header"
  times+=$(printf '        %5d ms  %s' $(((${EPOCHREALTIME//[.,]/} - start) / 1000)) "$header")$'\n'
done
printf 'parse times:\n%s' "$times"
finish
