#!/usr/bin/env bash
# scripts/sanitize's accounting, with a stand-in for compute-sanitizer: what passes, what fails and why, what is run again.
# usage: sanitize_test.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/checks.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"

cat >"$work/tests" <<'END'
#!/bin/bash
printf '[doctest] listing all test case names\n'
printf 'cuda: %s\n' 'clean, in every dtype' 'wrong' 'reported' 'endless' 'crash' 'nothing ran'
END
# It ignores everything but the tool and the case, which come as --tool NAME ... PROGRAM --no-colors=true -tc=NAME.
cat >"$work/bin/compute-sanitizer" <<'END'
#!/bin/bash
[ "$1" != --help ] || exec echo "--kernel-name arg"
echo "$2 ${*: -1}" >>"$(dirname "$0")/calls"
ran='[doctest] test cases: 1 | 1 passed | 0 failed | 9 skipped' summary='ERROR SUMMARY: 0 errors'
[ "$2" != racecheck ] || summary='RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'
case ${*: -1} in
  *wrong) echo '[doctest] test cases: 1 | 0 passed | 1 failed | 9 skipped'; echo "========= $summary"; exit 1 ;;
  *reported | memcheck | racecheck)
    echo "========= Invalid __global__ read of size 4 bytes"; echo "========= ${summary/0/1}"; echo "$ran"; exit 99 ;;
  *endless) exec tail -f /dev/null ;;
  *crash) kill -SEGV $$ ;;
  *"nothing ran") echo '[doctest] test cases: 0 | 0 passed | 0 failed | 10 skipped'; echo "========= $summary" ;;
  *) echo "$ran"; echo "========= $summary" ;;
esac
END
printf '#!/bin/bash\ntrue\n' >"$work/bin/nvcc"
chmod +x "$work/tests" "$work/bin"/*

# sanitize ARGUMENTS...: its output, whether it fails or not.
sanitize() {
  PATH=$work/bin:$PATH scripts/sanitize --program "$work/tests" --out "$work/out" -j 4 "$@" >"$work/output" 2>&1 || true
}
says() { grep -qxF -- "$1" "$work/output" || { cat "$work/output" && return 1; }; }
calls_of() { grep -c -- "$1" "$work/bin/calls" || true; }

sanitize --tool memcheck --tool racecheck --limit 1
check "a tool's totals" says "memcheck: 1 passed, 5 failed, 0 skipped"
check "the other's" says "racecheck: 1 passed, 5 failed, 0 skipped"
check "all, with the planted faults" says "5 passed, 10 failed, 0 skipped"
check "a report is the reason" says \
  "FAILED  memcheck, cuda: reported: failed: Invalid __global__ read of size 4 bytes ($work/out/memcheck/reported.log)"
check "a case that does not end has failed" says \
  "FAILED  racecheck, cuda: endless: failed: no end within 1 s ($work/out/racecheck/endless.log)"
check "so has one that crashes" grep -q "memcheck, cuda: crash: failed: it ended with status 139" "$work/output"
check "so has one that never ran" grep -q "memcheck, cuda: nothing ran: failed" "$work/output"

rm "$work/bin/calls" "$work/out/memcheck/clean_in_every_dtype.log"
sanitize --tool memcheck --limit 1
check "what has a verdict is not run again" test "$(calls_of -tc)" = 1
check "but counts" says "memcheck: 1 passed, 5 failed, 0 skipped"
rm "$work/bin/calls"
sanitize --tool memcheck --limit 2
check "a longer limit tries again what did not end" test "$(calls_of endless)/$(calls_of -tc)" = 1/1

rm "$work/bin/calls"
sanitize --tool synccheck --tests '*clean*' --for 0
check "what there was no time for is skipped" says "synccheck: 0 passed, 0 failed, 1 skipped"
sanitize --tool leakcheck
check "an unknown tool" says "there is no tool 'leakcheck': it is one of memcheck synccheck racecheck initcheck"
sanitize --tests '*none*'
check "no such case" grep -q "no GPU test case matches" "$work/output"
named=$(sed -n 's/^refused_on_purpose=("\(.*\)")$/\1/p' scripts/sanitize)
check "the case that the script names is there" grep -rqF "TEST_CASE(\"${named:?}\")" tests/cuda
finish
