#!/usr/bin/env bash
# Plants each kind of offence in a small tree and expects check_includes.sh to name exactly that line.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/checks.sh"
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT

plant_clean_tree() {
  rm -rf "${tree:?}"/*
  mkdir -p "$tree"/{include/cuttle,src/core,src/memory,src/ops,src/cpu,src/cli,models,cuda,tests,bench,examples}
  touch "$tree/CMakeLists.txt"
  printf '#pragma once\n#include <vector>\n#include "cuttle/shape.hpp"\n' >"$tree/include/cuttle/tensor.hpp"
  printf '#pragma once\n' >"$tree/src/core/tensor_impl.hpp"
  printf '#include <fmt/format.h>\n#include "core/tensor_impl.hpp"\n#include "kernels.hpp"\n' >"$tree/src/ops/conv.cpp"
  printf '#include <Eigen/Core>\n#include "cpu/parallel.hpp"\n#include "memory/pool.hpp"\n' >"$tree/src/cpu/conv.cpp"
  printf '#include <CLI/CLI.hpp>\n#include "train/trainer.hpp"\n' >"$tree/src/cli/main.cpp"
  printf '#include <cudnn.h>\n#include "cuda/stream.hpp"\n#if CUDNN_VERSION < 90000\n#endif\n' >"$tree/cuda/conv.cu"
  printf '#include "cuttle/models.hpp"\n#include "zoo.hpp"\n' >"$tree/models/lenet.cpp"
  printf '#include <doctest/doctest.h>\n#include "core/tensor_impl.hpp"\n' >"$tree/tests/conv_test.cpp"
  printf '#include <cuttle/cuttle.hpp>\n' >"$tree/examples/mnist.cpp"
  printf '#include "kernels.hpp"\n' >"$tree/src/no_cuda.cpp"
  printf 'std::cerr << text; std::snprintf(text, 2, "a");\n' >"$tree/src/cli/output.cpp"
  printf 'std::snprintf(text, 2, "a");\n' >"$tree/src/core/text.cpp"
  seq 600 | sed 's/^/\/\/ /' >"$tree/src/core/long.cpp"
}

# finds FILE LINE TEXT: with TEXT as that line of FILE, the one offence is there.
finds() {
  local file=$1 line=$2 text=$3 found
  plant_clean_tree
  mkdir -p "$(dirname "$tree/$file")"
  seq $((line - 1)) | sed 's/.*/\/\/ a comment/' >"$tree/$file"
  printf '%s\n' "$text" >>"$tree/$file"
  if found=$(bash "$here/check_includes.sh" "$tree"); then
    echo "not found"
    return 1
  fi
  printf '%s\n' "$found"
  [ "$(printf '%s\n' "$found" | wc -l)" = 1 ] && [[ $found == "$file:$line: "* ]]
}

plant_clean_tree
check "a clean tree has no offence" bash "$here/check_includes.sh" "$tree"
check "a public header may not include fmt" finds include/cuttle/a.hpp 3 '#include <fmt/format.h>'
check "a public header may not include an internal header" finds include/cuttle/a.hpp 1 '#include "core/tensor_impl.hpp"'
check "core may not include ops" finds src/core/a.cpp 2 '#include "ops/common.hpp"'
check "ops may not include cpu" finds src/ops/a.cpp 7 '#include "cpu/parallel.hpp"'
check "cpu may not include core" finds src/cpu/a.cpp 2 '#include "core/tensor_impl.hpp"'
check "models may not include internal headers" finds models/a.cpp 2 '#include "nn/init.hpp"'
check "cuda may not include core" finds cuda/a.cu 2 '#include "core/tensor_impl.hpp"'
check "files of src itself may not include core" finds src/a.cpp 2 '#include "core/tensor_impl.hpp"'
check "a folder that the design does not name" finds src/misc/a.cpp 2 '#include "core/tensor_impl.hpp"'
check "an include relative to the file" finds src/ops/a.cpp 2 '#include "common.hpp"'
check "an include with dots" finds tests/a.cpp 2 '#include "../src/kernels.hpp"'
check "Eigen in a test" finds tests/a.cpp 2 '#include <Eigen/Core>'
check "Eigen in ops, with spaces" finds src/ops/a.cpp 7 '  #  include <Eigen/Core>'
check "a CUDA header in core" finds src/core/a.cpp 2 '#include <cuda_runtime.h>'
check "CLI11 in train" finds src/train/a.cpp 2 '#include <CLI/CLI.hpp>'
check "an example may not include fmt" finds examples/a.cpp 2 '#include <fmt/format.h>'
check "#ifdef CUTTLE_CUDA in core" finds src/core/a.cpp 2 '#ifdef CUTTLE_CUDA'
check "#if defined(__CUDACC__) in a public header" finds include/cuttle/a.hpp 4 '#if defined(__CUDACC__)'
check "#elif on cuDNN in a bench" finds bench/a.cpp 2 '#elif !defined(USE_CUDNN)'
check "fmt::print in a command" finds src/cli/a.cpp 2 '  fmt::print(stderr, "{}\n", text);'
check "std::cout in the trainer" finds src/train/a.cpp 2 '  std::cout << text;'
check "printf in cuda" finds cuda/a.cu 2 '  std::fprintf(stderr, "%s", text);'
check "601 lines of C++" finds src/core/a.cpp 601 '// one too many'
check "601 lines of Python" finds tests/golden/generate.py 601 '# one too many'
finish
