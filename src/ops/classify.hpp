#pragma once
#include "cuttle/ops.hpp"

namespace cuttle::ops {

/// cross_entropy() and correct_count() with their results in `out`, a scalar of the result's dtype on the device of the
/// logits, whose contents and history are replaced: several figures can lie side by side and be read at once.
void cross_entropy_into(Tensor& out, const Tensor& logits, const Tensor& targets, CrossEntropyOptions options);
void correct_count_into(const Tensor& out, const Tensor& logits, const Tensor& targets);

}  // namespace cuttle::ops
