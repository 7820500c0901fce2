#include "worker/session/frozen_forward.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <utility>

#include "ATen/DeviceAccelerator.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/tensor.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/cache/client/tensor_hash.h"
#include "worker/session/row_proof.h"

namespace egeria::worker {
namespace {

// Passes that might be skipped and are computed all the same, to be compared.
constexpr int64_t kAuditEvery = 256;
bool AuditDue(int64_t pass) { return pass == 1 || pass == 4 || pass == 16 || pass == 64 || pass % kAuditEvery == 0; }

// Of an accelerator, which has to be waited for: in the beginning all, then some.
constexpr int64_t kTimedFirst = 64;
constexpr int64_t kTimedEvery = 32;

constexpr absl::Duration kFlushPatience = absl::Seconds(1);

std::vector<int64_t> AllRows(int64_t count) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return rows;
}

at::Tensor Index(const std::vector<int64_t>& rows, c10::Device device) {
  return at::tensor(rows, at::TensorOptions().dtype(at::kLong).device(device));
}

}  // namespace

double FrozenForward::Now() const {
  if (timed_ && at::accelerator::isAccelerator(device_.type())) {
    at::accelerator::getCurrentStream(device_.index()).synchronize();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void FrozenForward::Follow(const std::vector<LayerModule>& modules, int count) {
  if (stopped_) return;
  Leave(/*forget=*/true);
  if (count == 0) return;
  prefix_.emplace(std::span(modules).first(static_cast<size_t>(count)));
  prefix_->cost.SamplesRepeat(options_.samples_repeat);
}

void FrozenForward::Leave(bool forget) {
  if (!prefix_.has_value()) return;
  totals_ = totals();
  if (forget && prefix_->fingerprint.has_value()) {
    options_.cache->Drop(*prefix_->fingerprint, cache::CacheClient::Scope::kPrefix);
  }
  prefix_.reset();
}

void FrozenForward::Stop(bool finished) {
  if (std::exchange(stopped_, true)) return;
  Leave(/*forget=*/finished);
  options_.cache->client().Flush(kFlushPatience);
  options_.cache->Stop();
}

bool FrozenForward::in_use() const {
  if (!prefix_.has_value() || !prefix_->refusal.empty() || !prefix_->fingerprint.has_value()) return false;
  const cache::CostModel::State state = prefix_->cost.state();
  return options_.always || state == cache::CostModel::State::kTrying || state == cache::CostModel::State::kOn;
}

at::Tensor FrozenForward::Run(const at::Tensor& input, const BatchSamples& samples) {
  const at::NoGradGuard no_gradients;
  const int64_t pass = totals_.passes++;
  EGERIA_CHECK(samples.ids.size() == static_cast<size_t>(input.size(0)));
  device_ = input.device();
  timed_ = input.is_cpu() || pass < kTimedFirst || pass % kTimedEvery == 0;
  const bool use = prefix_->cost.Use() || options_.always;
  TellDecision();
  if (!use || !prefix_->refusal.empty()) return Compute(input);
  CountPass();
  if (!prefix_->fingerprint.has_value()) return Prove(input, samples);
  if (!prefix_->frozen.unchanged() || !prefix_->contents->Unchanged()) {
    Refuse("weights or buffers of frozen layer modules are not what they were");
  } else if (input.sizes() == prefix_->input_shape) {
    return RunCached(input, samples);
  } else {
    totals_.misses["unproven"] += input.size(0);
  }
  return Compute(input);
}

void FrozenForward::CountPass() {
  if (options_.passes_per_epoch > 0 && ++prefix_->cached_passes % options_.passes_per_epoch == 0) {
    prefix_->cost.EpochPassed();
  }
}

at::Tensor FrozenForward::Compute(const at::Tensor& input) {
  const double begin = Now();
  at::Tensor output = prefix_->frozen.Run(input);
  if (timed_) prefix_->cost.Computed(Now() - begin);
  return output;
}

at::Tensor FrozenForward::Prove(const at::Tensor& input, const BatchSamples& samples) {
  at::Tensor output = Compute(input);
  const double begin = Now();
  ++totals_.proofs;
  totals_.misses["unproven"] += input.size(0);
  const auto compute = [this](const at::Tensor& batch) { return prefix_->frozen.Run(batch); };
  if (output.dim() == 0 || output.size(0) != input.size(0) || !output.is_contiguous()) {
    Refuse("their output has no dense row for each sample");
  } else if (!RowsAreIndependent(compute, input, output)) {
    Refuse("what they compute for a sample depends on its place in the batch or on the other samples");
  } else {
    prefix_->input_shape = input.sizes().vec();
    prefix_->output_shape = output.sizes().vec();
    prefix_->output_type = output.scalar_type();
    prefix_->fingerprint = prefix_->frozen.FingerprintFor(input);
    prefix_->contents.emplace(prefix_->frozen.tensors());
    options_.cache->Use(*prefix_->fingerprint);
    Offer(samples, cache::HashRows(samples.host_input), AllRows(input.size(0)), output);
  }
  prefix_->cost.Spent(Now() - begin);
  return output;
}

at::Tensor FrozenForward::RunCached(const at::Tensor& input, const BatchSamples& samples) {
  const double begin = Now();
  const double patience =
      options_.always ? absl::ToDoubleSeconds(options_.cache->patience()) : prefix_->cost.patience();
  const std::vector<uint64_t> hashes = cache::HashRows(samples.host_input);
  cache::CachedBatch batch = options_.cache->Take(samples.ids, hashes, patience);
  const bool fits = batch.tensors.size() == 1 && batch.tensors[0].sizes() == prefix_->output_shape &&
                    batch.tensors[0].scalar_type() == prefix_->output_type;
  std::vector<int64_t> missing;
  for (size_t i = 0; i < batch.outcomes.size(); ++i) {
    cache::SampleOutcome& outcome = batch.outcomes[i];
    if (outcome == cache::SampleOutcome::kHit && !fits) outcome = cache::SampleOutcome::kShapeMismatch;
    if (outcome != cache::SampleOutcome::kHit) missing.push_back(static_cast<int64_t>(i));
  }
  const int64_t hits = input.size(0) - static_cast<int64_t>(missing.size());
  const bool skips = hits > 0 && (missing.empty() || FillIn(input, missing, &batch.tensors[0]));
  if (skips && !missing.empty()) Offer(samples, hashes, missing, batch.tensors[0]);
  const double spent = Now() - begin;
  if (skips && AuditDue(++prefix_->skippable)) {
    prefix_->cost.Spent(spent);
    totals_.misses["audited"] += input.size(0);
    return Audit(input, batch.tensors[0]);
  }
  for (const cache::SampleOutcome outcome : batch.outcomes) {
    const bool hit = outcome == cache::SampleOutcome::kHit;  // if of no use: the batch was computed as a whole
    if (!hit || !skips) ++totals_.misses[hit ? "recomputed" : cache::SampleOutcomeName(outcome)];
  }
  if (skips) {
    totals_.hits += hits;
    ++totals_.passes_skipped;
    if (timed_) prefix_->cost.Fetched(spent, static_cast<double>(hits) / static_cast<double>(input.size(0)));
    return std::move(batch.tensors[0]);
  }
  at::Tensor output = Compute(input);
  if (hits > 0) LearnWhetherAlone(input, output, missing.size());
  const double computed = Now();
  Offer(samples, hashes, missing, output);
  if (timed_) prefix_->cost.Filled(spent + Now() - computed);
  return output;
}

int64_t FrozenForward::SizeAlone(size_t samples, int64_t batch) const {
  std::set<int64_t> sizes{3 * batch / 4};
  for (int64_t size = 1; size < batch; size *= 2) sizes.insert(size);
  for (auto size = sizes.lower_bound(static_cast<int64_t>(samples)); size != sizes.end(); ++size) {
    const auto known = prefix_->computes_alone.find(*size);
    if (known == prefix_->computes_alone.end() || known->second) return *size;
  }
  return 0;
}

bool FrozenForward::FillIn(const at::Tensor& input, const std::vector<int64_t>& missing, at::Tensor* output) {
  const int64_t size = SizeAlone(missing.size(), input.size(0));
  if (size == 0 || !prefix_->computes_alone.contains(size)) return false;
  std::vector<int64_t> rows = missing;
  rows.resize(static_cast<size_t>(size), missing[0]);
  const at::Tensor alone = prefix_->frozen.Run(input.index_select(0, Index(rows, device_)));
  output->index_copy_(0, Index(missing, device_), alone.narrow(0, 0, static_cast<int64_t>(missing.size())));
  return true;
}

void FrozenForward::LearnWhetherAlone(const at::Tensor& input, const at::Tensor& output, size_t samples) {
  const int64_t size = SizeAlone(samples, input.size(0));
  if (size == 0 || prefix_->computes_alone.contains(size)) return;
  const double begin = Now();
  const auto compute = [this](const at::Tensor& batch) { return prefix_->frozen.Run(batch); };
  prefix_->computes_alone[size] = RowsComputeAlone(compute, input, output, size);
  ++totals_.proofs;
  prefix_->cost.Spent(Now() - begin);
}

at::Tensor FrozenForward::Audit(const at::Tensor& input, const at::Tensor& fetched) {
  ++totals_.audits;
  at::Tensor output = Compute(input);
  if (!SameBits(output, fetched)) {
    Refuse("the cache has other activations than they compute");
    options_.cache->Drop(*prefix_->fingerprint, cache::CacheClient::Scope::kPrefix);
  }
  return output;
}

void FrozenForward::Offer(const BatchSamples& samples, const std::vector<uint64_t>& hashes,
                          const std::vector<int64_t>& rows, const at::Tensor& output) {
  absl::Status status;
  if (rows.size() == samples.ids.size()) {
    status = options_.cache->Put(samples.ids, hashes, {output}).status();
  } else {
    std::vector<uint64_t> some_ids, some_hashes;
    for (const int64_t row : rows) {
      some_ids.push_back(samples.ids[static_cast<size_t>(row)]);
      some_hashes.push_back(hashes[static_cast<size_t>(row)]);
    }
    status = options_.cache->Put(some_ids, some_hashes, {output.index_select(0, Index(rows, device_))}).status();
  }
  if (!status.ok()) Refuse(std::string(status.message()));
}

void FrozenForward::Refuse(const std::string& why) {
  prefix_->refusal = why;
  if (options_.tells) LogWarning("the forward pass of frozen layer modules is not skipped: ", why);
}

void FrozenForward::TellDecision() {
  if (!options_.tells || options_.always) return;
  const cache::CostModel::State state = prefix_->cost.state();
  if (state != cache::CostModel::State::kOn && state != cache::CostModel::State::kOff) return;
  if (std::exchange(told_, state) == state) return;
  LogInfo("the cache of frozen layer modules is ", StateName(state), ": ", prefix_->cost.estimates().reason);
}

double FrozenForward::spent_seconds() const {
  return totals_.spent_seconds + (prefix_.has_value() ? prefix_->cost.spent_seconds() : 0);
}

CacheTotals FrozenForward::totals() const {
  CacheTotals totals = totals_;
  AddReading(*options_.cache, &totals);
  totals.state = "unfrozen";
  if (!prefix_.has_value()) return totals;
  const cache::CostModel::Estimates estimates = prefix_->cost.estimates();
  totals.saved_seconds += estimates.saved_seconds;
  totals.spent_seconds = spent_seconds();
  totals.forward_seconds = estimates.forward_seconds.value_or(0);
  totals.fetch_seconds = estimates.fetch_seconds.value_or(0);
  totals.state = !prefix_->refusal.empty() ? "refused" : options_.always ? "on" : StateName(estimates.state);
  totals.reason = !prefix_->refusal.empty() ? prefix_->refusal
                  : options_.always         ? "it was asked for"
                                            : estimates.reason;
  return totals;
}

}  // namespace egeria::worker
