#pragma once
#include "cuttle/ops.hpp"

namespace cuttle::ops {

/// cross_entropy() and correct_count() in one pass, with their results in scalars of the results' dtypes on the device
/// of the logits, whose contents and history are replaced: several figures can lie side by side and be read at once.
/// `correct` may be undefined.
void cross_entropy_into(Tensor& loss, const Tensor& logits, const Tensor& targets, CrossEntropyOptions options,
                        const Tensor& correct = {});

}  // namespace cuttle::ops
