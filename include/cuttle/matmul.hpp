#pragma once

namespace cuttle {

/// Settings of matrix products (linear layers) from now on, in all threads. Those of convolutions, which may be
/// computed as matrix products, are apart (conv.hpp). The CPU computes in f32 always.
struct MatmulSettings {
  bool tf32 = false;  ///< f32 products may round their inputs to TF32
  bool operator==(const MatmulSettings&) const = default;
};
MatmulSettings matmul_settings();
void set_matmul_settings(const MatmulSettings& settings);

/// Other settings while it lives.
class MatmulSettingsScope {
 public:
  explicit MatmulSettingsScope(const MatmulSettings& settings) : before_(matmul_settings()) {
    set_matmul_settings(settings);
  }
  ~MatmulSettingsScope() { set_matmul_settings(before_); }
  MatmulSettingsScope(const MatmulSettingsScope&) = delete;
  MatmulSettingsScope& operator=(const MatmulSettingsScope&) = delete;

 private:
  MatmulSettings before_;
};

}  // namespace cuttle
