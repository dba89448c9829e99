#include "train/batch_of_one.hpp"

#include <fmt/format.h>

#include <memory>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"

namespace cuttle::train {
namespace {

bool learns_from(nn::Module& module, const ModelSpec& spec, std::int64_t images) {
  const NoGrad no_grad;
  try {
    module(Tensor::zeros({images, spec.channels, spec.size, spec.size}));
  } catch (const ShapeError&) {
    return false;
  }
  return true;
}

}  // namespace

void check_batch_of_one(const TrainConfig& config, const ModelSpec& spec) {
  if (config.batch > 1) return;
  const std::unique_ptr<nn::Module> module = make_module(spec);
  // Images that suit the model in no number are not the batch's fault.
  if (learns_from(*module, spec, 1) || !learns_from(*module, spec, 2)) return;
  throw UsageError(fmt::format("--batch 1 is not possible for {} on images of {}x{}: its batch norm would see a single "
                               "value a channel, which has no variance",
                               config.model, spec.size, spec.size),
                   "give --batch at least 2, or --size larger images");
}

}  // namespace cuttle::train
