#!/usr/bin/env bash
# Uses Cuttle as other projects do: installed and found by CMake, and as a subdirectory.
# usage: install_test.sh BUILD_DIR   (built already; MNIST is read from data/mnist)
set -euo pipefail
cd "$(dirname "$0")/.."
. tests/checks.sh
build=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

build_installed_example() {
  cmake -S examples -B "$scratch/example" -G Ninja -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_BUILD_TYPE=Release &&
    cmake --build "$scratch/example"
}

# Not optimised, for it builds the library anew.
build_embedded_example() {
  cmake -S tests/embedding -B "$scratch/embedded" -G Ninja && cmake --build "$scratch/embedded"
}

builds_only_the_library() {
  ! find "$scratch/embedded" -name cuttle_tests -o -name 'cuttle' -type f | grep .
}

reports_all_missing_packages() {
  local report
  report=$(cmake -S . -B "$scratch/missing" -G Ninja -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON \
    -DCMAKE_DISABLE_FIND_PACKAGE_doctest=ON 2>&1) && return 1
  grep -x ' *sudo apt-get install -y libfmt-dev doctest-dev' <<<"$report"
}

check "cmake --install" cmake --install "$build" --prefix "$scratch/prefix"
check "the example builds against the installed library" build_installed_example
check "the example trains three steps" "$scratch/example/mnist" data/mnist 3
check "the example builds with Cuttle as a subdirectory" build_embedded_example
check "the embedded example trains one step" "$scratch/embedded/mnist" data/mnist 1
check "an embedding project builds the library only" builds_only_the_library
check "CMake names all missing packages in one line" reports_all_missing_packages
finish
