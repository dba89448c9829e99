#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace cuttle {

/// How a convolution is computed on CUDA.
enum class ConvPath : std::uint8_t {
  heuristic,  ///< the first cuDNN plan of heuristic mode A that builds; else fallback plans, the legacy API, gemm
  measured,   ///< the fastest of cuDNN's first proposals and own kernels, timed once for each shape
  legacy,     ///< cuDNN's legacy API: the algorithm named, or the one its heuristic gives
  gemm,       ///< without cuDNN: im2col in tiles and cuBLAS
};

/// Settings of every convolution from now on, in all threads. Each is part of the key of a cached plan.
struct ConvSettings {
  ConvPath path = ConvPath::heuristic;
  std::string algorithm = {};  ///< legacy only: "IMPLICIT_PRECOMP_GEMM", "WINOGRAD_NONFUSED"...; empty: its heuristic
  bool tf32 = false;           ///< f32 convolutions and matrix products may round their inputs to TF32
  bool deterministic = false;  ///< only algorithms that give the same bits every time
  std::optional<std::uint64_t> workspace_limit = {};  ///< bytes, for each convolution
};
ConvSettings conv_settings();
void set_conv_settings(const ConvSettings& settings);

}  // namespace cuttle
