#pragma once

namespace cuttle {

/// Whether ops of this thread record history.
bool grad_enabled();
void set_grad_enabled(bool enabled);

/// While it lives, ops of this thread record no history.
class NoGrad {
 public:
  NoGrad() : before_(grad_enabled()) { set_grad_enabled(false); }
  ~NoGrad() { set_grad_enabled(before_); }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

}  // namespace cuttle
