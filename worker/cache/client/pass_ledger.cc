#include "worker/cache/client/pass_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace egeria::cache {
namespace {

// Audits are frequent in the beginning, where a mistake would show, and rare later, where they cost what a skipped pass
// saves.
constexpr int64_t kAuditEvery = 256;
bool AuditDue(int64_t skippable) {
  return skippable == 1 || skippable == 4 || skippable == 16 || skippable == 64 || skippable % kAuditEvery == 0;
}

// On an accelerator each time that is taken waits for the device, which would otherwise work ahead of the host. The
// first passes are all timed, since the cost model decides by eight measurements and should do so in the first epoch.
// From then on the median of the last 31 only has to follow slow changes, and one pass in 32 keeps the waiting under
// what the host's work ahead gains in the others.
constexpr int64_t kTimedFirst = 64;
constexpr int64_t kTimedEvery = 32;

const std::string kUnfit = "unfit";

}  // namespace

void PassLedger::Follow() {
  saved_before_ += cost_.estimates().saved_seconds;
  spent_before_ += cost_.spent_seconds();
  cost_ = CostModel();
  skippable_ = 0;
  told_.reset();
  last_began_.reset();
}

bool PassLedger::Begin(std::optional<int64_t> samples, bool on_host) {
  const int64_t pass = counts_.passes++;
  timed_ = on_host || pass < kTimedFirst || pass % kTimedEvery == 0;
  if (!samples.has_value()) {
    Missed("no_ids", 1);
    return false;
  }
  samples_ = *samples;
  const double now = clock_(/*wait=*/false);
  const double before = std::exchange(last_began_, now).value_or(now);
  if (cost_.Use(now - before) || always_) return true;
  Missed("off", samples_);
  return false;
}

void PassLedger::Missed(const std::string& reason, int64_t samples) {
  if (samples > 0) counts_.misses[reason] += samples;
}

void PassLedger::Failed(int64_t samples) {
  ++counts_.failures;
  Missed("failure", samples);
}

void PassLedger::Proved(double since) {
  const double now = Now();
  ++counts_.proofs;
  cost_.Spent(now - since);
  since_ += now - since;
}

std::vector<int64_t> PassLedger::Answer(const std::vector<std::string>& reasons, bool fits) {
  std::vector<int64_t> missing;
  for (size_t i = 0; i < reasons.size(); ++i) {
    const std::string& reason = reasons[i].empty() && !fits ? kUnfit : reasons[i];
    if (reason.empty()) continue;
    Missed(reason, 1);
    missing.push_back(static_cast<int64_t>(i));
  }
  hits_ = samples_ - static_cast<int64_t>(missing.size());
  return missing;
}

PassLedger::Step PassLedger::Decide(bool filled) {
  spent_ += Now() - since_;
  if (hits_ == 0 || !filled) {  // the hits are of no use, since the batch is computed as a whole
    Missed("recomputed", hits_);
    return Step::kCompute;
  }
  if (!AuditDue(++skippable_)) return Step::kSkip;
  ++counts_.audits;
  Missed("audited", hits_);
  cost_.Spent(spent_);
  return Step::kAudit;
}

void PassLedger::Skipped() {
  counts_.hits += hits_;
  ++counts_.passes_skipped;
  cost_.Fetched(spent_ + Now() - since_, static_cast<double>(hits_) / static_cast<double>(samples_));
}

void PassLedger::Kept(double seconds_behind) {
  cost_.WrittenBehind(seconds_behind);
  cost_.Filled(spent_ + Now() - since_);
}

void PassLedger::Spared(double seconds) {
  ++counts_.passes_spared;
  saved_before_ += seconds;
}

void PassLedger::EndCompute() {
  if (timed_) cost_.Computed(Now() - computing_since_);
}

bool PassLedger::in_use() const {
  const CostModel::State state = cost_.state();
  return always_ || state == CostModel::State::kTrying || state == CostModel::State::kOn;
}

CostModel::Estimates PassLedger::estimates() const {
  CostModel::Estimates estimates = cost_.estimates();
  estimates.saved_seconds += saved_before_;
  if (always_) {
    estimates.state = CostModel::State::kOn;
    estimates.reason = "it was asked for";
  }
  return estimates;
}

std::optional<std::string> PassLedger::News() {
  const CostModel::State state = cost_.state();
  if (always_ || state == told_ || (state != CostModel::State::kOn && state != CostModel::State::kOff)) {
    return std::nullopt;
  }
  told_ = state;
  return absl::StrCat(StateName(state), ": ", cost_.estimates().reason);
}

}  // namespace egeria::cache
