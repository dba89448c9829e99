#!/usr/bin/env bash
# Enforces the rules that keep the parts of the tree apart; prints each offence as FILE:LINE: what is wrong.
# usage: check_includes.sh [ROOT]
#
#   include/cuttle       the standard library and cuttle/ only
#   src/X                public headers, kernels.hpp, and folders of src that come no later than X in the order below
#   models               public headers and each other
#   src/cpu, cuda        public headers, kernels.hpp, src/memory, src/conv and their own folder
#   examples             the standard library and cuttle/ only: what an installed copy offers
#   Eigen                in src/cpu only;  CUDA headers in cuda/ only;  CLI11 in src/cli only
#   printing             in src/cli/output.cpp only, which a fault of the stream cannot stop
#   #if on CUDA          nowhere: CMake chooses between cuda/ and src/no_cuda.cpp
#   length               600 lines a file
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

folders=()
for folder in include src models cuda tests bench examples scripts cmake tools; do
  [ ! -d "$folder" ] || folders+=("$folder")
done

find "${folders[@]}" CMakeLists.txt -type f \
  \( -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.py' -o -name '*.sh' \
  -o -name '*.cmake' -o -name CMakeLists.txt -o -path 'scripts/*' \) | sort | tr '\n' '\0' |
  xargs -0 awk -v order="core memory conv autograd ops nn optim amp data io train report cpu cli" '
    BEGIN {
      count = split(order, names, " ")
      for (i = 1; i <= count; ++i) rank[names[i]] = i
      split("algorithm any array atomic barrier bit bitset charconv chrono cmath compare complex concepts" \
            " condition_variable cstddef cstdint cstdio cstdlib cstring deque exception filesystem fstream functional" \
            " future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory" \
            " memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex semaphore set" \
            " shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view" \
            " system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray" \
            " variant vector version", std_names, " ")
      for (i in std_names) is_std[std_names[i]] = 1
    }

    function offence(text) {
      printf "%s:%d: %s\n", FILENAME, FNR, text
      bad = 1
    }

    # Of "src/X/file": X; of a file in src itself: "".
    function folder_in_src(path,   parts) { return split(path, parts, "/") > 2 ? parts[2] : "" }
    function folder_of(header,   parts) { return split(header, parts, "/") > 1 ? parts[1] : "" }

    function check_internal(header,   mine, its) {
      if (header ~ /^cuttle\// || header == "kernels.hpp") return
      its = folder_of(header)
      if (area == "cuda") {
        if (its != "cuda" && its != "memory" && its != "conv") offence("cuda may not include \"" header "\"")
        return
      }
      if (area == "models") {
        if (its != "") offence("models may include public headers and each other only, not \"" header "\"")
        return
      }
      mine = folder_in_src(FILENAME)
      if (!(its in rank) && its != mine) {
        offence("\"" header "\" is not a path relative to include or src")
      } else if (mine == "cpu") {
        if (its != "cpu" && its != "memory" && its != "conv") offence("src/cpu may not include \"" header "\"")
      } else if (mine == "") {
        offence("files of src itself may include public headers and kernels.hpp only, not \"" header "\"")
      } else if (!(mine in rank)) {
        offence("src/" mine " is no folder of the design")
      } else if (rank[its] > rank[mine]) {
        offence("src/" mine " may not include \"" header "\": " its " comes after " mine)
      }
    }

    function check_include(header, quoted) {
      if (header ~ /^(unsupported\/)?Eigen\// && FILENAME !~ /^src\/cpu\//) offence("Eigen is for src/cpu only")
      if (header ~ /^(cuda|cudnn|cublas|nvml|nccl|curand|driver_types)/ && area != "cuda" && header !~ /^cuda\//)
        offence("CUDA headers are for cuda/ only")
      if (header ~ /^CLI\// && FILENAME !~ /^src\/cli\//) offence("CLI11 is for src/cli only")
      if (header ~ /(^|\/)\.\.?\//) offence("includes are relative to include or src, without dots")
      if (area == "include" || area == "examples") {
        if (header !~ /^cuttle\// && !(header in is_std))
          offence((area == "include" ? "a public header" : "an example") \
                  " may include the standard library and cuttle/ only, not " header)
      } else if (quoted && (area == "src" || area == "models" || area == "cuda")) {
        check_internal(header)
      }
    }

    FNR == 1 { area = FILENAME; sub(/\/.*/, "", area) }
    FNR == 601 { offence("longer than 600 lines") }
    FILENAME !~ /\.(cpp|hpp|h|cu|cuh)$/ { next }
    /^[ \t]*#[ \t]*include[ \t]*[<"]/ {
      quoted = $0 ~ /include[ \t]*"/
      header = $0
      sub(/^[^<"]*[<"]/, "", header)
      sub(/[>"].*/, "", header)
      check_include(header, quoted)
    }
    area ~ /^(include|src|models|cuda)$/ && FILENAME != "src/cli/output.cpp" &&
      /fmt::print|std::(cout|cerr|clog)|(^|[^A-Za-z_])(v?f?printf|f?puts|putchar|perror)\(/ {
      offence("printing is for src/cli/output.cpp only: a stream that cannot be written would end the program")
    }
    /^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|elifdef|elifndef)[ \t(!]/ {
      if (area != "cuda" && toupper($0) ~ /CUDA|CUDNN|NVCC/) offence("no conditional compilation for CUDA: CMake chooses")
    }

    END { exit bad }
  '
