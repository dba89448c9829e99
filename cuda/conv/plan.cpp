#include "cuda/conv/plan.hpp"

#include <fmt/format.h>

#include <limits>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "cuda/conv/choose.hpp"
#include "cuda/kernels/bias.hpp"
#include "cuttle/error.hpp"
#include "kernels.hpp"

namespace cuttle::cuda {

namespace {

struct KeyHash {
  std::size_t operator()(const ConvKey& key) const {
    static_assert(std::has_unique_object_representations_v<ConvKey>, "the key is hashed as bytes");
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&key), sizeof key});
  }
};

struct Entry {
  std::shared_ptr<const ConvRunner> runner;
  Tried tried;
};

std::mutex mutex;
auto& entries = *new std::unordered_map<ConvKey, Entry, KeyHash>;

std::shared_ptr<const ConvRunner> runner_of(Context& context, const ConvKey& key, const ConvOperands& operands) {
  const std::lock_guard lock(mutex);
  Entry& entry = entries[key];
  if (entry.runner) return entry.runner;
  entry.runner = choose(context, key, operands, entry.tried);
  if (entry.runner) return entry.runner;
  const std::string text = entry.tried.attempts.text();
  entries.erase(key);
  throw CudnnError(fmt::format("no algorithm runs {}; tried:{}", describe(key),
                               text.empty() ? "\n    nothing: the heuristics proposed no engine" : text),
                   "allow more workspace (--workspace-limit), or compute without cuDNN (--conv gemm)");
}

void mark_failed(const ConvKey& key, const ConvRunner& runner, const std::string& reason) {
  const std::lock_guard lock(mutex);
  Entry& entry = entries[key];
  entry.tried.failed.insert(runner.label());
  entry.tried.attempts.add(runner.label(), reason);
  entry.runner = nullptr;
}

}  // namespace

std::string Attempts::too_large(std::size_t bytes, std::int64_t limit) {
  return fmt::format("it wants {} bytes of workspace, the limit is {}", bytes, limit);
}

Tensor scratch_bytes(int device, std::size_t bytes) {
  if (bytes == 0) return {};
  return Tensor::empty({static_cast<std::int64_t>(bytes)}, {DType::u8, {DeviceKind::cuda, device}});
}

void add_bias_relu(const ConvOperands& operands, bool relu) {
  const Tensor& y = operands.out;
  if (operands.bias.defined()) add_bias(operands.bias, y);
  if (relu) kernels(y).relu(y, std::numeric_limits<double>::infinity(), y);
}

std::string run_convolution(const ConvKey& wanted, const ConvOperands& operands) {
  Context& context = cuda::context(operands.a);
  ConvKey key = wanted;
  std::string short_of_memory, cause, hint;
  while (true) {
    std::shared_ptr<const ConvRunner> runner;
    try {
      runner = runner_of(context, key, operands);
      runner->run(context, operands);
      return runner->name();
    } catch (const OutOfMemoryError& error) {
      if (cause.empty()) cause = error.cause(), hint = error.hint();
      const std::size_t bytes = runner ? runner->workspace_bytes() : 0;
      if (bytes == 0) throw;
      short_of_memory += fmt::format("\n    {}: {} bytes of workspace could not be had", runner->label(), bytes);
      key.workspace_limit = static_cast<std::int64_t>(bytes / 2);
    } catch (const CudnnError& error) {
      if (!runner) {
        if (short_of_memory.empty()) throw;
        throw OutOfMemoryError(
            fmt::format("{}: {}; tried:{}\n{}", describe(wanted), cause, short_of_memory, error.cause()), hint);
      }
      mark_failed(key, *runner, error.cause());
    }
  }
}

}  // namespace cuttle::cuda
