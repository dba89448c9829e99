#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuttle/device.hpp"
#include "cuttle/dtype.hpp"
#include "cuttle/shape.hpp"

/// Which algorithm computes a convolution. Without a word here the policy decides; a layer's options or a rule can name
/// the algorithm of each pass.
namespace cuttle {

enum class ConvPass : std::uint8_t { forward, backward_data, backward_filter };
inline constexpr std::array kConvPasses{ConvPass::forward, ConvPass::backward_data, ConvPass::backward_filter};
std::string_view name_of(ConvPass pass);  ///< "forward", "backward_data", "backward_filter"

/// Names of algorithms, one list a pass: alternatives in order of preference with '|' between them,
/// "WINOGRAD_NONFUSED|engine:67|auto". Empty is "auto": what the policy takes. A list whose last name cannot run either
/// is an error. The names are
/// - cuDNN's legacy algorithms without their prefix: IMPLICIT_PRECOMP_GEMM, ALGO_1, FFT_TILING...
/// - engines of cuDNN's graph API: engine:65 with the knobs its heuristic proposes, or engine:65,k2=5,k13=1
/// - Cuttle's own: gemm, depthwise and first_layer on a GPU; im2col, gemm_1x1, direct and depthwise on the CPU
struct ConvAlgorithms {
  std::string forward = {}, backward_data = {}, backward_filter = {};
  const std::string& of(ConvPass pass) const;
  std::string& of(ConvPass pass);
  bool operator==(const ConvAlgorithms&) const = default;
};

/// The legacy API's names of a pass, at the place of cuDNN's number for each.
std::span<const std::string_view> legacy_algorithms(ConvPass pass);
/// The alternatives of a list. Throws UsageError for a name that no backend has, listing those of the pass.
std::vector<std::string> parse_choices(ConvPass pass, std::string_view list);

/// What a layer asks of its convolutions and what computed them last. The layer shares it with the gradients that it
/// recorded; any thread may use it.
class ConvChoice {
 public:
  /// `layer` is for messages. Throws UsageError for a name that no backend has.
  explicit ConvChoice(ConvAlgorithms wanted = {}, std::string layer = {});
  const ConvAlgorithms& wanted() const { return wanted_; }
  const std::string& layer() const { return layer_; }
  ConvAlgorithms used() const;  ///< empty for a pass that has not run
  void set_used(ConvPass pass, const std::string& name);

 private:
  ConvAlgorithms wanted_, used_;
  std::string layer_;
  mutable std::mutex mutex_;
};

/// What one word of --algo says: "LAYER.PASS=LIST", "LAYER=LIST", "PASS=LIST" or "*.PASS=LIST". PASS is fwd, bwd_data,
/// bwd_filter or a pass's whole name; LAYER is a layer's path in the model, and '*' in it stands for any text.
struct ConvRule {
  std::string layer = "*";
  std::optional<ConvPass> pass = {};  ///< unset: all three, each as far as it knows the names
  std::string choices;
  std::string text;  ///< as it was written, for errors
};
/// Throws UsageError saying which part is wrong.
ConvRule parse_conv_rule(std::string_view text);
/// The environment's: CUTTLE_CONV_ALGO (rules, ';' between them), and CUDNN_CONV_ALGO_FWD, _BWD_DATA and _BWD_FILTER
/// (numbers of legacy algorithms in order of preference, ',' between them), which come first. Throws UsageError naming
/// the variable.
std::vector<ConvRule> conv_rules_from_environment();

/// What chooses where no algorithm is named.
enum class ConvPolicy : std::uint8_t {
  heuristic,  ///< own kernels, then the first cuDNN plan that its heuristics propose and that builds; legacy API; gemm
  measure,    ///< the fastest of these, timed when a shape comes for the second time
  legacy,     ///< what the legacy API's heuristic says
  gemm,       ///< im2col in tiles and matrix products
};

/// Settings of every convolution from now on, in all threads. Each is part of the key of a cached plan, so none that
/// was made under other settings is used. The CPU computes in f32 always, is always deterministic, and heeds policy,
/// names and workspace_limit alone.
struct ConvSettings {
  ConvPolicy policy = ConvPolicy::heuristic;
  int measure_limit = 10;      ///< candidates that `measure` times for a shape, at most
  bool cudnn = true;           ///< false: own kernels and gemm alone
  bool tf32 = false;           ///< f32 convolutions may round their inputs to TF32
  bool deterministic = false;  ///< only algorithms that give the same bits every time
  /// Products of 16-bit numbers may be added up in 16 bits where an algorithm does.
  bool reduced_precision_accumulation = true;
  /// Bytes, for each convolution. One stream works on one convolution at a time, so this bounds the network's too.
  std::optional<std::uint64_t> workspace_limit = {};
  bool operator==(const ConvSettings&) const = default;
};
ConvSettings conv_settings();
void set_conv_settings(const ConvSettings& settings);

/// What computes one convolution, with all that decides it: an entry of a plan file. Sizes in the order N,C,H,W
/// whatever the layout.
struct ConvPlan {
  ConvPass pass{};
  DType dtype{};
  Layout layout{};
  std::array<std::int64_t, 4> x{}, w{}, y{};
  std::array<std::int64_t, 2> stride{}, padding{}, dilation{};
  std::int64_t groups = 1;
  bool bias = false, relu = false;  ///< forward: what follows in the same call
  bool accumulate = false;          ///< backward_filter: the gradient is added to what is there
  std::int64_t alignment = 16;      ///< bytes that every tensor's address is a multiple of, at most 16
  bool tf32 = false, deterministic = false, reduced_precision_accumulation = true;

  std::string api;   ///< graph, legacy, gemm, own, cpu
  std::string name;  ///< as ConvAlgorithms takes it
  int fused = 0;     ///< graph: so many of the steps that follow are in the kernel
  std::uint64_t workspace_bytes = 0;
  double time_us = 0;  ///< 0: it was not measured
};

/// Plans hold for the device and the library that they were made with.
struct ConvPlans {
  std::string device;   ///< "NVIDIA H200"
  std::string library;  ///< "cuDNN 9.19.0"
  std::string driver;   ///< "580.159.04"; a newer one may run them too
  std::vector<ConvPlan> plans;
};
/// What the device has used so far in this process.
ConvPlans conv_plans(Device device);
/// These come before the policy, behind algorithms that are asked for by name. A plan that does not run, or whose
/// workspace is above the limit, is passed over, with a line among the notices. Throws CheckpointError if they are of
/// another device or library.
void use_conv_plans(Device device, ConvPlans plans);
/// What there is to say of plans that were passed over, since this was asked last.
std::vector<std::string> take_conv_notices();

/// As JSON. Throws IoError.
void save_conv_plans(const std::string& file, const ConvPlans& plans);
/// Throws CheckpointError naming the file and what is wrong: missing, not JSON, truncated, of another format or
/// version, sizes that cannot be, names that do not exist.
ConvPlans load_conv_plans(const std::string& file);

/// Other settings while it lives.
class ConvSettingsScope {
 public:
  explicit ConvSettingsScope(const ConvSettings& settings) : before_(conv_settings()) { set_conv_settings(settings); }
  ~ConvSettingsScope() { set_conv_settings(before_); }
  ConvSettingsScope(const ConvSettingsScope&) = delete;
  ConvSettingsScope& operator=(const ConvSettingsScope&) = delete;

 private:
  ConvSettings before_;
};

}  // namespace cuttle
