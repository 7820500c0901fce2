#include "common/policy/learning_rate_watch.h"

#include <algorithm>

namespace egeria::policy {
namespace {

constexpr double kSlack = 1e-9;

}  // namespace

LearningRateWatch::Change LearningRateWatch::Observe(double rate, bool something_frozen) {
  newest_ = rate;
  if (!something_frozen) return Change::kNone;
  if (!reference_) {
    NoteFrozen();
    return Change::kNone;
  }
  if (drop_ > 0 && rate <= *reference_ / drop_ * (1 + kSlack)) return Change::kDrop;
  if (rise_ > 0 && rate >= *minimum_ * rise_ * (1 - kSlack)) return Change::kRise;
  if (rate > 0) minimum_ = std::min(*minimum_, rate);
  return Change::kNone;
}

void LearningRateWatch::NoteFrozen() {
  if (reference_ || !newest_ || *newest_ <= 0) return;
  reference_ = minimum_ = newest_;
}

void LearningRateWatch::NoteAllActive() {
  reference_.reset();
  minimum_.reset();
}

}  // namespace egeria::policy
