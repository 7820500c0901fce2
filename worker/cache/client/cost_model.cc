#include "worker/cache/client/cost_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace egeria::cache {
namespace {

constexpr int kMaxFruitlessEpochs = 3;
// A pass that was held up by something else counts as so many forward passes of the frozen layers.
constexpr double kMaxOfOnePass = 2;

std::string Milliseconds(double seconds) { return absl::StrFormat("%.2f ms", 1e3 * seconds); }

}  // namespace

void CostModel::Recent::Add(double value) {
  if (values_.size() < kRemembered) {
    values_.push_back(value);
  } else {
    values_[next_] = value;
    next_ = (next_ + 1) % kRemembered;
  }
}

std::optional<double> CostModel::Recent::median() const {
  if (values_.empty()) return std::nullopt;
  std::vector<double> sorted = values_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

double CostModel::Recent::mean() const {
  return std::accumulate(values_.begin(), values_.end(), 0.0) / static_cast<double>(values_.size());
}

std::optional<double> CostModel::write_seconds() const {
  const std::optional<double> fill = fill_.median();
  if (!fill.has_value() || fills_behind_ == 0) return fill;
  return *fill + behind_seconds_ / static_cast<double>(fills_behind_);
}

bool CostModel::MayWriteAtARisk() const {
  if (!likely_.value_or(true)) return false;
  const std::optional<double> write = write_seconds(), forward = forward_.median();
  if (!write.has_value()) return true;  // to find out
  if (fills_ >= static_cast<int64_t>(kFewWrites) && forward.has_value() && *write > *forward) return false;
  return likely_.has_value() || written_seconds_ + behind_seconds_ + *write <= kWriteShare * steps_seconds_;
}

bool CostModel::Use(double step_seconds) {
  ++passes_;
  if (step_seconds > 0) {
    step_.Add(step_seconds);
    steps_seconds_ += std::min(step_seconds, kMaxOfOnePass * *step_.median());
  }
  if (state_ == State::kUnknown) return MayWriteAtARisk();
  if (state_ == State::kOff && !samples_differ_ && passes_ >= resume_at_) {
    state_ = State::kTrying;
    reason_ = "it is tried again";
    fetch_.clear();
    fill_.clear();
    hits_ = 0;
    filling_ = true;
    fruitless_epochs_ = 0;
    saved_before_epoch_ = saved_seconds_;
  }
  return state_ == State::kTrying || state_ == State::kOn;
}

void CostModel::SamplesRepeat(bool repeat) {
  if (repeat == !samples_differ_ && state_ != State::kUnknown) return;
  state_ = repeat ? State::kTrying : State::kOff;
  samples_differ_ = !repeat;
  reason_ = repeat ? "there are no measurements yet"
                   : "samples do not come again as they were, so that nothing could be reused (random augmentation, "
                     "other padding, or a number that the model is called with and that changes: make it a tensor)";
}

void CostModel::Computed(double seconds) { forward_.Add(seconds); }

void CostModel::Spent(double seconds) {
  saved_seconds_ -= seconds;
  spent_seconds_ += seconds;
}

void CostModel::WrittenBehind(double total_seconds) {
  if (!behind_before_.has_value()) {
    behind_before_ = total_seconds;
  } else {
    behind_seconds_ = total_seconds - *behind_before_;
    ++fills_behind_;
  }
}

void CostModel::Filled(double seconds) {
  fill_.Add(seconds);
  written_seconds_ += seconds;
  ++fills_;
  Asked(seconds + forward_.median().value_or(0));
  Spent(seconds);
  Decide();
}

void CostModel::Fetched(double seconds, double hit_share) {
  if (hit_share >= 1 || !filling_) fetch_.Add(seconds);
  Asked(seconds);
  hits_ += hit_share > 0;
  saved_seconds_ += forward_.median().value_or(seconds);
  Spent(seconds);
  Decide();
}

void CostModel::Asked(double seconds) {
  const std::optional<double> forward = forward_.median();
  if (state_ == State::kOn && forward.has_value()) asked_.Add(std::min(seconds, kMaxOfOnePass * *forward));
}

void CostModel::EpochPassed() {
  if (state_ != State::kTrying && state_ != State::kOn) return;
  filling_ = false;
  const bool skipped = std::exchange(hits_, 0) > 0;
  const bool paid = saved_seconds_ > std::exchange(saved_before_epoch_, saved_seconds_);
  fruitless_epochs_ = skipped && paid ? 0 : fruitless_epochs_ + 1;
  if (fruitless_epochs_ < kMaxFruitlessEpochs) return;
  reason_ = skipped ? "samples come again, but skipping passes has saved less time than the cache has taken"
                    : "samples come again, but no pass could be skipped: too few of them were in the cache";
  Rest();
}

void CostModel::Decide() {
  const std::optional<double> forward = forward_.median();
  if (!forward.has_value() || (state_ != State::kTrying && state_ != State::kOn)) return;
  if (fetch_.size() >= kEnough) {
    const double fetch = *fetch_.median();
    const bool pays = fetch < (state_ == State::kOn ? 1.0 : kSwitchOn) * *forward;
    reason_ = absl::StrCat("the frozen layers' forward pass takes ", Milliseconds(*forward), " and a fetch ",
                           Milliseconds(fetch));
    if (!pays) {
      Rest();
    } else if (state_ == State::kTrying) {
      state_ = State::kOn;
      asked_.clear();
    } else if (asked_.size() < kRemembered) {
      return;
    } else if (asked_.mean() < *forward) {
      rest_ = kFirstRest;
    } else {
      absl::StrAppend(&reason_, ", but a pass that asked for it, late and missing samples included, ",
                      Milliseconds(asked_.mean()));
      Rest();
    }
  } else if (fetch_.size() == 0 && fill_.size() >= kEnough && *write_seconds() > *forward) {
    reason_ = absl::StrCat("the frozen layers' forward pass takes ", Milliseconds(*forward),
                           ", and to keep its result ", Milliseconds(*write_seconds()));
    Rest();
  }
}

void CostModel::Rest() {
  state_ = State::kOff;
  resume_at_ = passes_ + rest_;
  rest_ = std::min(2 * rest_, kLongestRest);
}

double CostModel::patience() const {
  return std::min(kPatienceShare * forward_.median().value_or(0), kLongestPatience);
}

const char* StateName(CostModel::State state) {
  switch (state) {
    case CostModel::State::kUnknown: return "unknown";
    case CostModel::State::kTrying: return "trying";
    case CostModel::State::kOn: return "on";
    case CostModel::State::kOff: return "off";
  }
  return "unknown";
}

CostModel::Estimates CostModel::estimates() const {
  return {state_, forward_.median(), fetch_.median(), saved_seconds_, reason_};
}

}  // namespace egeria::cache
