#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "cuttle/error.hpp"
#include "cuttle/optim.hpp"

namespace cuttle::optim {
namespace {

void require(bool valid, const char* schedule, const char* what, double value, const char* rule) {
  if (!valid) throw UsageError(fmt::format("{} schedule: {} = {} must be {}", schedule, what, value, rule));
}

void require_rate(const char* schedule, const char* what, double value) {
  require(std::isfinite(value) && value >= 0, schedule, what, value, "a finite number of at least 0");
}

void require_steps(const char* schedule, const char* what, std::int64_t steps) {
  require(steps >= 1, schedule, what, static_cast<double>(steps), "at least 1");
}

/// Half a cosine: `from` at part 0, `to` at part 1.
double anneal(double from, double to, double part) {
  return to + (from - to) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace

Schedule Schedule::constant(double lr) {
  require_rate("constant", "lr", lr);
  Schedule s;
  s.lr_ = lr;
  return s;
}

Schedule Schedule::step(double lr, std::int64_t period, double gamma) {
  require_rate("step", "lr", lr);
  require_steps("step", "period", period);
  require_rate("step", "gamma", gamma);
  Schedule s;
  s.kind_ = Kind::step;
  s.lr_ = lr;
  s.period_ = period;
  s.gamma_ = gamma;
  return s;
}

Schedule Schedule::cosine(double lr, std::int64_t steps, double min_lr) {
  require_rate("cosine", "lr", lr);
  require_steps("cosine", "steps", steps);
  require_rate("cosine", "min_lr", min_lr);
  Schedule s;
  s.kind_ = Kind::cosine;
  s.lr_ = lr;
  s.period_ = steps;
  s.last_lr_ = min_lr;
  return s;
}

Schedule Schedule::one_cycle(double max_lr, std::int64_t steps, double rise, double div, double final_div) {
  require_rate("one-cycle", "max_lr", max_lr);
  require_steps("one-cycle", "steps", steps);
  require(rise >= 0 && rise <= 1, "one-cycle", "rise", rise, "within [0,1]");
  require(std::isfinite(div) && div > 0, "one-cycle", "div", div, "a finite number above 0");
  require(std::isfinite(final_div) && final_div > 0, "one-cycle", "final_div", final_div, "a finite number above 0");
  Schedule s;
  s.kind_ = Kind::one_cycle;
  s.lr_ = max_lr;
  s.period_ = steps;
  s.first_lr_ = max_lr / div;
  s.last_lr_ = s.first_lr_ / final_div;
  s.rise_ = rise;
  return s;
}

Schedule Schedule::with_warmup(std::int64_t steps, double start_factor) const {
  require(steps >= 0, "warm-up", "steps", static_cast<double>(steps), "at least 0");
  require(start_factor >= 0 && start_factor <= 1, "warm-up", "start_factor", start_factor, "within [0,1]");
  require(warmup_ == 0, "warm-up", "steps before", static_cast<double>(warmup_), "0: a schedule has one warm-up");
  Schedule s = *this;
  s.warmup_ = steps;
  s.warmup_factor_ = start_factor;
  return s;
}

double Schedule::operator()(std::int64_t t) const {
  require(t >= 0, "learning rate", "step", static_cast<double>(t), "at least 0");
  if (t >= warmup_) return after_warmup(t - warmup_);
  const double part = static_cast<double>(t) / static_cast<double>(warmup_);
  return after_warmup(0) * (warmup_factor_ + (1 - warmup_factor_) * part);
}

double Schedule::after_warmup(std::int64_t t) const {
  switch (kind_) {
    case Kind::constant: return lr_;
    case Kind::step: return lr_ * std::pow(gamma_, static_cast<double>(t / period_));
    case Kind::cosine:
      return anneal(lr_, last_lr_, static_cast<double>(std::min(t, period_)) / static_cast<double>(period_));
    case Kind::one_cycle: return one_cycle_rate(std::min(t, period_ - 1));
  }
  return lr_;
}

/// PyTorch's phases: the peak lies at rise*steps - 1, which need not be a whole step, the end at steps - 1.
double Schedule::one_cycle_rate(std::int64_t t) const {
  constexpr double kRounding = 1e-9;  // 0.1*10 is not quite 1 where multiply and subtract are fused
  const double at = static_cast<double>(t);
  const double peak = rise_ * static_cast<double>(period_) - 1;
  const double end = static_cast<double>(period_ - 1);
  if (at > peak + kRounding) return anneal(lr_, last_lr_, (at - peak) / (end - peak));
  return peak > kRounding ? anneal(first_lr_, lr_, at / peak) : lr_;
}

}  // namespace cuttle::optim
