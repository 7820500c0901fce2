#include "worker/session/request_agreement.h"

#include <algorithm>
#include <limits>

#include "common/base/status.h"

namespace egeria::worker {
namespace {

// This is larger than any content, so that it vanishes in a minimum.
constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();

}  // namespace

template <size_t size>
void RequestAgreement::Topic<size>::Advertise(int64_t version, const Content& own, std::vector<int64_t>* out) const {
  if (version < 0) version = kNoVersion;
  out->push_back(-version);  // the minimum of these is the newest
  const bool holder = version != kNoVersion && version == newest;
  for (const int64_t number : own) out->push_back(holder ? number : kNothing);
}

template <size_t size>
void RequestAgreement::Topic<size>::Hear(const int64_t** in) {
  const int64_t of_content = newest;  // the version for which the content that now comes was advertised
  newest = -*(*in)++;
  const int64_t* const numbers = *in;
  *in += size;
  agreed.reset();
  if (newest == kNoVersion || newest != of_content || numbers[0] == kNothing) return;
  agreed = newest;
  std::copy(numbers, numbers + size, content.begin());
}

std::vector<int64_t> RequestAgreement::Advertise(const std::optional<SamplingRequest>& sampling,
                                                 const std::optional<SnapshotRequest>& snapshot,
                                                 const std::optional<GradientRequest>& gradients) const {
  std::vector<int64_t> numbers;
  const SamplingRequest sample = sampling.value_or(SamplingRequest{.version = kNoVersion});
  sampling_.Advertise(sample.version,
                      {sample.module.value(), sample.first_module.value(), sample.interval_steps, sample.batch_size,
                       static_cast<int64_t>(sample.metric)},
                      &numbers);
  const SnapshotRequest shot = snapshot.value_or(SnapshotRequest{.version = kNoVersion});
  snapshot_.Advertise(shot.version, {shot.module.value(), shot.first_module.value()}, &numbers);
  const GradientRequest gradient = gradients.value_or(GradientRequest{.version = kNoVersion});
  gradients_.Advertise(gradient.version, {gradient.first_module.value(), gradient.interval_steps}, &numbers);
  return numbers;
}

void RequestAgreement::Hear(const std::vector<int64_t>& minima) {
  const int64_t* in = minima.data();
  sampling_.Hear(&in);
  snapshot_.Hear(&in);
  gradients_.Hear(&in);
  EGERIA_CHECK(in == minima.data() + minima.size());
}

std::optional<SamplingRequest> RequestAgreement::sampling() const {
  if (!sampling_.agreed.has_value()) return std::nullopt;
  const auto& content = sampling_.content;
  return SamplingRequest{
      ModuleIndex(content[0]),      ModuleIndex(content[1]), static_cast<int>(content[2]),
      static_cast<int>(content[3]), *sampling_.agreed,       static_cast<ActivationMetric>(content[4])};
}

std::optional<SnapshotRequest> RequestAgreement::snapshot() const {
  if (!snapshot_.agreed.has_value()) return std::nullopt;
  return SnapshotRequest{ModuleIndex(snapshot_.content[0]), ModuleIndex(snapshot_.content[1]), *snapshot_.agreed};
}

std::optional<GradientRequest> RequestAgreement::gradients() const {
  if (!gradients_.agreed.has_value()) return std::nullopt;
  return GradientRequest{ModuleIndex(gradients_.content[0]), static_cast<int>(gradients_.content[1]),
                         *gradients_.agreed};
}

}  // namespace egeria::worker
