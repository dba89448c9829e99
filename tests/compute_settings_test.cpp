#include <doctest/doctest.h>

#include "cuttle/cuttle.hpp"
#include "train/config.hpp"

using namespace cuttle;
using namespace cuttle::train;

namespace {

/// What a configuration makes of both settings.
std::pair<ConvSettings, MatmulSettings> applied(const TrainConfig& config) {
  const ConvSettingsScope conv(conv_settings());
  const MatmulSettingsScope matmul(matmul_settings());
  apply_compute_settings(config);
  return {conv_settings(), matmul_settings()};
}

}  // namespace

TEST_CASE("settings of convolutions and of matrix products are apart, and end with their scope") {
  const ConvSettings conv = conv_settings();
  const MatmulSettings matmul = matmul_settings();
  {
    const MatmulSettingsScope scope({.tf32 = !matmul.tf32});
    CHECK(matmul_settings().tf32 != matmul.tf32);
    CHECK(conv_settings() == conv);
  }
  {
    ConvSettings other = conv;
    other.tf32 = !conv.tf32;
    const ConvSettingsScope scope(other);
    CHECK(conv_settings() == other);
    CHECK(matmul_settings() == matmul);
  }
  CHECK(conv_settings() == conv);
  CHECK(matmul_settings() == matmul);
}

TEST_CASE("a precision of tf32 is for both, and each can be set apart") {
  for (const Precision precision : {Precision::fp32, Precision::tf32}) {
    TrainConfig config;
    config.precision = precision;
    const bool tf32 = precision == Precision::tf32;
    CHECK(applied(config).first.tf32 == tf32);
    CHECK(applied(config).second.tf32 == tf32);
    config.tf32_conv = !tf32;
    CHECK(applied(config).first.tf32 == !tf32);
    CHECK(applied(config).second.tf32 == tf32);
    config.tf32_conv.reset();
    config.tf32_matmul = !tf32;
    CHECK(applied(config).first.tf32 == tf32);
    CHECK(applied(config).second.tf32 == !tf32);
  }
}

TEST_CASE("every setting of convolutions reaches them") {
  TrainConfig config;
  CHECK(applied(config).first == ConvSettings());
  config.conv = ConvPolicy::measure;
  config.measure_limit = 3;
  config.no_cudnn = true;
  config.tf32_conv = true;
  config.deterministic = true;
  config.no_reduced_precision = true;
  config.workspace_limit = 0;
  CHECK(applied(config).first == ConvSettings{.policy = ConvPolicy::measure,
                                              .measure_limit = 3,
                                              .cudnn = false,
                                              .tf32 = true,
                                              .deterministic = true,
                                              .reduced_precision_accumulation = false,
                                              .workspace_limit = 0});
}
