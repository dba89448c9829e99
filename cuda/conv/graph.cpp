#include "cuda/conv/graph.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/check.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda::graph {

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  CUTTLE_CUDNN(cudnnBackendCreateDescriptor(type, &descriptor));
  descriptor_.reset(descriptor);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                            const void* values) {
  const cudnnStatus_t status = cudnnBackendSetAttribute(get(), name, type, count, values);
  if (status != CUDNN_STATUS_SUCCESS) {
    check(status, fmt::format("cudnnBackendSetAttribute(attribute {})", static_cast<int>(name)).c_str());
  }
  return *this;
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, std::int64_t value) {
  return set(name, CUDNN_TYPE_INT64, 1, &value);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, std::span<const std::int64_t> values) {
  return set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, bool value) {
  return set(name, CUDNN_TYPE_BOOLEAN, 1, &value);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, float value) {
  return set(name, CUDNN_TYPE_FLOAT, 1, &value);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
  return set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, cudnnHandle_t value) {
  return set(name, CUDNN_TYPE_HANDLE, 1, &value);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& value) {
  const cudnnBackendDescriptor_t raw = value.get();
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw);
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, std::span<const Descriptor> values) {
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const Descriptor& value : values) raw.push_back(value.get());
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<std::int64_t>(raw.size()), raw.data());
}

cudnnStatus_t Descriptor::try_finalize() { return cudnnBackendFinalize(get()); }

Descriptor& Descriptor::finalize() {
  check(try_finalize(), "cudnnBackendFinalize");
  return *this;
}

std::int64_t Descriptor::get_int(cudnnBackendAttributeName_t name) const {
  std::int64_t value = 0, count = 0;
  CUTTLE_CUDNN(cudnnBackendGetAttribute(get(), name, CUDNN_TYPE_INT64, 1, &count, &value));
  return value;
}

namespace {

Descriptor tensor(const TensorSpec& spec) {
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, spec.uid)
      .set(CUDNN_ATTR_TENSOR_DATA_TYPE, spec.type)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::span<const std::int64_t>(spec.sizes))
      .set(CUDNN_ATTR_TENSOR_STRIDES, std::span<const std::int64_t>(spec.strides))
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, spec.alignment)
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, spec.is_virtual)
      .finalize();
  return d;
}

Descriptor convolution_descriptor(const ConvSpec& conv) {
  Descriptor d(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  d.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT)
      .set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode)
      .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::int64_t{2})
      .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, std::span<const std::int64_t>(conv.stride))
      .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, std::span<const std::int64_t>(conv.padding))
      .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, std::span<const std::int64_t>(conv.padding))
      .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, std::span<const std::int64_t>(conv.dilation))
      .finalize();
  return d;
}

/// The attribute names that differ between the three passes.
struct PassNames {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t conv, a, b, out, alpha, beta;
};

PassNames names(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case Pass::backward_data:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case Pass::backward_filter: break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

}  // namespace

void OperationGraph::convolution(Pass pass, const ConvSpec& conv, const TensorSpec& a, const TensorSpec& b,
                                 const TensorSpec& out, float beta) {
  const PassNames n = names(pass);
  Descriptor operation(n.type);
  operation.set(n.conv, convolution_descriptor(conv))
      .set(n.a, tensor(a))
      .set(n.b, tensor(b))
      .set(n.out, tensor(out))
      .set(n.alpha, 1.0f)
      .set(n.beta, beta)
      .finalize();
  operations_.push_back(std::move(operation));
}

void OperationGraph::pointwise(cudnnPointwiseMode_t mode, const TensorSpec& a, const TensorSpec* b,
                               const TensorSpec& out) {
  Descriptor pointwise(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  pointwise.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT)
      .finalize();
  Descriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, tensor(a))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensor(out));
  if (b) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, tensor(*b));
  operation.finalize();
  operations_.push_back(std::move(operation));
}

void OperationGraph::add(const TensorSpec& a, const TensorSpec& b, const TensorSpec& out) {
  pointwise(CUDNN_POINTWISE_ADD, a, &b, out);
}

void OperationGraph::relu(const TensorSpec& x, const TensorSpec& out) {
  pointwise(CUDNN_POINTWISE_RELU_FWD, x, nullptr, out);
}

void OperationGraph::finalize(cudnnHandle_t handle) {
  graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, handle)
      .set(CUDNN_ATTR_OPERATIONGRAPH_OPS, std::span<const Descriptor>(operations_))
      .finalize();
}

EngineConfig::EngineConfig(Descriptor config) : config_(std::move(config)) {
  const Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  CUTTLE_CUDNN(cudnnBackendGetAttribute(config_.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                        &count, &raw));
  engine_ = engine.get_int(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  name_ = fmt::format("engine:{}", engine_);

  notes_.resize(CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  count = 0;
  CUTTLE_CUDNN(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                        CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes_.data()));
  notes_.resize(static_cast<std::size_t>(std::min<std::int64_t>(count, CUDNN_NUMERICAL_NOTE_TYPE_COUNT)));

  // An engine that does not tell is taken for ready.
  cudnnBackendBehaviorNote_t behavior[CUDNN_BEHAVIOR_NOTE_TYPE_COUNT] = {};
  std::int64_t told = 0;
  if (cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                               CUDNN_BEHAVIOR_NOTE_TYPE_COUNT, &told, behavior) != CUDNN_STATUS_SUCCESS) {
    told = 0;
  }
  const auto notes =
      std::span(behavior).first(static_cast<std::size_t>(std::min<std::int64_t>(told, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT)));
  is_compiled_at_runtime_ = std::ranges::find(notes, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) != notes.end();

  std::vector<Descriptor> choices;
  std::vector<cudnnBackendDescriptor_t> pointers;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
    choices.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    pointers.push_back(choices.back().get());
  }
  count = 0;
  CUTTLE_CUDNN(cudnnBackendGetAttribute(config_.get(), CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                        CUDNN_KNOB_TYPE_COUNTS, &count, pointers.data()));
  for (std::int64_t i = 0; i < std::min<std::int64_t>(count, CUDNN_KNOB_TYPE_COUNTS); ++i) {
    const Descriptor& choice = choices[static_cast<std::size_t>(i)];
    cudnnBackendKnobType_t type{};
    std::int64_t one = 0;
    CUTTLE_CUDNN(
        cudnnBackendGetAttribute(choice.get(), CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &one, &type));
    name_ += fmt::format(",k{}={}", static_cast<int>(type), choice.get_int(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
  }
}

bool EngineConfig::has(cudnnBackendNumericalNote_t note) const {
  return std::find(notes_.begin(), notes_.end(), note) != notes_.end();
}

namespace {

std::vector<Knob> knobs_of(const Descriptor& engine) {
  std::vector<Descriptor> infos;
  std::vector<cudnnBackendDescriptor_t> pointers;
  for (int i = 0; i < CUDNN_KNOB_TYPE_COUNTS; ++i) {
    infos.emplace_back(CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR);
    pointers.push_back(infos.back().get());
  }
  std::int64_t count = 0;
  CUTTLE_CUDNN(cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_KNOB_INFO, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                        CUDNN_KNOB_TYPE_COUNTS, &count, pointers.data()));
  std::vector<Knob> knobs;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(count, CUDNN_KNOB_TYPE_COUNTS); ++i) {
    const Descriptor& info = infos[static_cast<std::size_t>(i)];
    cudnnBackendKnobType_t type{};
    std::int64_t one = 0;
    CUTTLE_CUDNN(cudnnBackendGetAttribute(info.get(), CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &one, &type));
    knobs.push_back({static_cast<std::int64_t>(type), info.get_int(CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE),
                     info.get_int(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE), info.get_int(CUDNN_ATTR_KNOB_INFO_STRIDE)});
  }
  return knobs;
}

Descriptor knob_choice(std::int64_t engine, const std::vector<Knob>& knobs, std::int64_t type, std::int64_t value) {
  const auto knob = std::ranges::find(knobs, type, &Knob::type);
  if (knob == knobs.end()) {
    std::string known;
    for (const Knob& k : knobs)
      known += fmt::format("{}k{} ({} to {})", known.empty() ? "" : ", ", k.type, k.least, k.most);
    throw CudnnError(fmt::format("engine {} has no knob k{}; it has {}", engine, type, known.empty() ? "none" : known));
  }
  if (value < knob->least || value > knob->most || (knob->step > 1 && (value - knob->least) % knob->step != 0)) {
    throw CudnnError(fmt::format("k{} of engine {} cannot be {}: it goes from {} to {} in steps of {}", type, engine,
                                 value, knob->least, knob->most, std::max<std::int64_t>(1, knob->step)));
  }
  Descriptor choice(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
  const auto name = static_cast<cudnnBackendKnobType_t>(type);
  choice.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &name)
      .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value)
      .finalize();
  return choice;
}

}  // namespace

EngineConfig configure(const OperationGraph& graph, std::int64_t number,
                       std::span<const std::pair<std::int64_t, std::int64_t>> knobs) {
  const std::int64_t engines = graph.descriptor().get_int(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT);
  if (number >= engines) {
    throw CudnnError(fmt::format("there is no engine {}: they are numbered 0 to {}", number, engines - 1));
  }
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph.descriptor())
      .set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, number)
      .finalize();
  const std::vector<Knob> known = knobs_of(engine);
  std::vector<Descriptor> choices;
  for (const auto& [type, value] : knobs) choices.push_back(knob_choice(number, known, type, value));
  Descriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  config.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!choices.empty()) config.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, std::span<const Descriptor>(choices));
  config.finalize();
  return EngineConfig(std::move(config));
}

std::vector<Descriptor> propose(const OperationGraph& graph, cudnnBackendHeurMode_t mode, std::int64_t most) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph.descriptor())
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (heuristics.try_finalize() != CUDNN_STATUS_SUCCESS) return {};

  std::int64_t count = 0;
  CUTTLE_CUDNN(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                        0, &count, nullptr));
  const std::int64_t wanted = std::min(count, most);
  std::vector<Descriptor> proposals;
  std::vector<cudnnBackendDescriptor_t> pointers;
  for (std::int64_t i = 0; i < wanted; ++i) {
    proposals.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    pointers.push_back(proposals.back().get());
  }
  if (wanted == 0) return {};
  CUTTLE_CUDNN(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                        wanted, &count, pointers.data()));
  // The count says how many there are, or how many were handed out: never more than were asked for.
  proposals.erase(proposals.begin() + std::min(count, wanted), proposals.end());
  return proposals;
}

Plan::Plan(cudnnHandle_t handle, EngineConfig config) : config_(std::move(config)) {
  plan_.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle)
      .set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config_.descriptor())
      .finalize();
  workspace_bytes_ = static_cast<std::size_t>(plan_.get_int(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
}

void Plan::run(cudnnHandle_t handle, std::span<const std::int64_t> uids, std::span<void* const> pointers,
               void* workspace) const {
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids)
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, static_cast<std::int64_t>(pointers.size()),
           pointers.data())
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
      .finalize();
  CUTTLE_CUDNN(cudnnBackendExecute(handle, plan_.get(), pack.get()));
}

}  // namespace cuttle::cuda::graph
