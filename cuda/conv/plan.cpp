#include "cuda/conv/plan.hpp"

#include <fmt/format.h>

#include <limits>
#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>

#include "conv/lru_cache.hpp"
#include "cuda/check.hpp"
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
  const ConvChoice* first_layer = nullptr;  ///< compared, not followed
  Chosen chosen = {};
  Tried tried = {};
  std::optional<OutOfMemoryError> shortage = {};  ///< the first, where memory for a workspace could not be had
  std::int64_t room = -1;                         ///< bytes of workspace to try then; -1: as the key says
};

/// The largest models have some 200 keys a batch size, so this holds training, evaluation and last batches of a few
/// models, and sizes that vary without end do not fill the host's memory and the card's with code.
constexpr std::size_t kMostKeys = 1024;

std::mutex mutex;
auto& cache = *new LruCache<ConvKey, Entry, KeyHash>(kMostKeys);

/// Work that is queued may still run a plan's kernels, which go with it.
void retire(Context& context, ConvRunnerPtr runner) {
  if (!runner) return;
  if (context.recording()) {
    context.keep(std::move(runner));
  } else {
    CUTTLE_CUDA(cudaStreamSynchronize(context.stream()));
  }
}

[[noreturn]] void fail(const ConvKey& key, const Entry& entry) {
  const std::string text = entry.tried.attempts.text();
  const std::string cause = fmt::format("no algorithm runs {}; tried:{}", describe(key),
                                        text.empty() ? "\n    nothing: the heuristics proposed no engine" : text);
  if (entry.shortage) {
    throw OutOfMemoryError(fmt::format("{}\n{}", entry.shortage->cause(), cause), entry.shortage->hint());
  }
  throw CudnnError(cause, "allow more workspace (--workspace-limit), or compute without cuDNN (--conv gemm)");
}

/// One convolution on its way to a runner.
class Request {
 public:
  Request(Context& context, const ConvKey& key, const ConvOperands& operands)
      : context_(context), key_(key), operands_(operands) {}

  ConvRunnerPtr arrive(const ConvChoice* layer) {
    const std::lock_guard lock(mutex);
    Entry* entry = cache.find(key_);
    if (!entry) return choose_for(insert(layer), {});
    const Chosen& chosen = entry->chosen;
    const bool measures = chosen.is_provisional && entry->first_layer == layer && !context_.recording();
    if (chosen.runner && !measures) return chosen.runner;
    return choose_for(*entry, {.now = measures, .incumbent = chosen.runner});
  }

  /// What takes the place of a runner that was refused its workspace.
  ConvRunnerPtr with_less(const ConvRunner& runner, const OutOfMemoryError& error) {
    const std::lock_guard lock(mutex);
    Entry& entry = find();
    if (!entry.shortage) entry.shortage = error;
    entry.room = static_cast<std::int64_t>(runner.workspace_bytes() / 2);
    entry.tried.attempts.add(runner.label(),
                             fmt::format("{} bytes of workspace could not be had", runner.workspace_bytes()));
    return choose_for(entry, {});
  }

  /// What takes the place of a runner that cuDNN refused.
  ConvRunnerPtr after(const ConvRunner& runner, const CudnnError& error) {
    const std::lock_guard lock(mutex);
    Entry& entry = find();
    entry.tried.failed.insert(runner.label());
    entry.tried.attempts.add(runner.label(), error.cause());
    return choose_for(entry, {});
  }

 private:
  Entry& insert(const ConvChoice* layer) {
    return cache.insert(key_, {.first_layer = layer},
                        [&](Entry old) { retire(context_, std::move(old.chosen.runner)); });
  }
  Entry& find() {
    Entry* entry = cache.find(key_);
    return entry ? *entry : insert(nullptr);
  }

  ConvRunnerPtr choose_for(Entry& entry, const Measuring& measuring) {
    ConvKey key = key_;
    if (entry.room >= 0) key.workspace_limit = entry.room;
    Chosen chosen = choose(context_, key, operands_, measuring, entry.tried);
    if (!chosen.runner) {
      Entry failed = std::move(entry);
      cache.erase(key_);
      retire(context_, std::move(failed.chosen.runner));
      fail(key_, failed);
    }
    if (entry.chosen.runner != chosen.runner) retire(context_, std::move(entry.chosen.runner));
    entry.chosen = std::move(chosen);
    return entry.chosen.runner;
  }

  Context& context_;
  const ConvKey& key_;
  const ConvOperands& operands_;
};

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

std::string run_convolution(const ConvKey& key, const ConvOperands& operands, const ConvChoice* layer) {
  Context& context = cuda::context(operands.a);
  Request request(context, key, operands);
  ConvRunnerPtr runner = request.arrive(layer);
  while (true) {
    try {
      context.keep(runner);
      runner->run(context, operands);
      return runner->name();
    } catch (const OutOfMemoryError& error) {
      if (runner->workspace_bytes() == 0) throw;
      runner = request.with_less(*runner, error);
    } catch (const CudnnError& error) {
      runner = request.after(*runner, error);
    }
  }
}

std::vector<std::pair<ConvKey, Chosen>> cached_choices(int device) {
  const std::lock_guard lock(mutex);
  std::vector<std::pair<ConvKey, Chosen>> found;
  for (const auto& [key, entry] : cache) {
    if (key.device == device && entry.chosen.runner) found.emplace_back(key, entry.chosen);
  }
  return found;
}

void forget_choices(int device) {
  const std::lock_guard lock(mutex);
  std::vector<ConvKey> keys;
  for (const auto& [key, entry] : cache) {
    if (key.device == device) keys.push_back(key);
  }
  for (const ConvKey& key : keys) {
    retire(context(device), std::move(cache.find(key)->chosen.runner));
    cache.erase(key);
  }
}

}  // namespace cuttle::cuda
