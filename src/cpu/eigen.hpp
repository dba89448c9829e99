#pragma once

/// The one place that includes Eigen. Threads are ours (cpu/parallel.hpp), so Eigen starts none.
#define EIGEN_DONT_PARALLELIZE

// GCC 12 takes the deliberately undefined operands of its own AVX-512 intrinsics for a mistake (GCC bug 105593), also
// where they are inlined from a system header.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <Eigen/Core>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
