#include "common/metrics/health.h"

#include "absl/strings/str_cat.h"

namespace egeria::metrics {

void Health::SetServing(bool serving) {
  const MutexLock lock(&mutex_);
  serving_ = serving;
}

void Health::Beat() {
  const MutexLock lock(&mutex_);
  beat_ = MonotonicNow();
}

void Health::Set(Parts* parts, const std::string& part, const absl::Status& status) {
  if (status.ok()) {
    parts->erase(part);
  } else {
    (*parts)[part] = std::string(status.message());
  }
}

void Health::SetDegraded(const std::string& part, const absl::Status& status) {
  const MutexLock lock(&mutex_);
  Set(&degraded_, part, status);
}

void Health::SetUseless(const std::string& part, const absl::Status& status) {
  const MutexLock lock(&mutex_);
  Set(&useless_, part, status);
}

absl::Status Health::Ready() const {
  const MutexLock lock(&mutex_);
  std::string why;
  if (!serving_) absl::StrAppend(&why, "it is starting or stopping\n");
  if (const absl::Duration still = MonotonicNow() - beat_; serving_ && still > patience_) {
    absl::StrAppend(&why, "it is stuck: its main loop has stood still for ", absl::ToInt64Seconds(still), " s\n");
  }
  for (const auto& [part, reason] : useless_) absl::StrAppend(&why, part, ": ", reason, "\n");
  return why.empty() ? absl::OkStatus() : absl::UnavailableError(why);
}

absl::Status Health::Healthy() const {
  std::string why(Ready().message());
  const MutexLock lock(&mutex_);
  for (const auto& [part, reason] : degraded_) absl::StrAppend(&why, part, ": ", reason, "\n");
  return why.empty() ? absl::OkStatus() : absl::UnavailableError(why);
}

}  // namespace egeria::metrics
