#include "worker/session/frozen_forward.h"

#include <algorithm>
#include <chrono>
#include <numeric>
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

using Step = cache::PassLedger::Step;

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

FrozenForward::FrozenForward(Options options)
    : options_(std::move(options)), ledger_([this](bool wait) { return Now(wait); }, options_.always) {}

double FrozenForward::Now(bool wait) const {
  if (wait && at::accelerator::isAccelerator(device_.type())) {
    at::accelerator::getCurrentStream(device_.index()).synchronize();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void FrozenForward::Follow(const std::vector<LayerModule>& modules, int count) {
  if (stopped_) return;
  Leave(/*forget=*/true);
  if (count == 0) return;
  prefix_.emplace(std::span(modules).first(static_cast<size_t>(count)));
  ledger_.SamplesRepeat(options_.samples_repeat);
}

void FrozenForward::Leave(bool forget) {
  if (!prefix_.has_value()) return;
  ledger_.Follow();
  if (forget && prefix_->fingerprint.has_value()) options_.cache->Drop(*prefix_->fingerprint);
  prefix_.reset();
}

void FrozenForward::Stop(bool finished) {
  if (std::exchange(stopped_, true)) return;
  Leave(/*forget=*/finished);
  options_.cache->client().Flush(kFlushPatience);
  options_.cache->Stop();
}

bool FrozenForward::in_use() const {
  return prefix_.has_value() && prefix_->refusal.empty() && prefix_->fingerprint.has_value() && ledger_.in_use();
}

at::Tensor FrozenForward::Run(const at::Tensor& input, const BatchSamples& samples, FusedPrefix* fused) {
  const at::NoGradGuard no_gradients;
  EGERIA_CHECK(samples.ids.size() == static_cast<size_t>(input.size(0)));
  device_ = input.device();
  const bool use = ledger_.Begin(input.size(0), /*on_host=*/input.is_cpu());
  if (const auto news = ledger_.News(); news.has_value() && options_.tells) {
    LogInfo("the cache of frozen layer modules is ", *news);
  }
  if (!use || !prefix_->refusal.empty()) return Compute(input, fused);
  CountPass();
  if (!prefix_->fingerprint.has_value()) {
    if (fused == nullptr || fused->is_decided()) return Prove(input, samples, fused);
    ledger_.Missed("unproven", input.size(0));
    return fused->Run(input);
  }
  if (input.sizes() != prefix_->input_shape) {
    ledger_.Missed("unproven", input.size(0));
  } else if (!IsAsProven(input)) {
    Refuse("weights or buffers of frozen layer modules have changed");
  } else {
    return RunCached(input, samples);
  }
  return Compute(input, fused);
}

bool FrozenForward::IsAsProven(const at::Tensor& input) {
  const bool touched = !prefix_->contents->Touched().empty();
  if (!prefix_->contents->Unchanged()) return false;
  return !touched || FingerprintFor(input) == *prefix_->fingerprint;
}

cache::Fingerprint FrozenForward::FingerprintFor(const at::Tensor& input) const {
  const cache::Fingerprint exact = prefix_->frozen.FingerprintFor(input);
  return prefix_->fused == nullptr ? exact : cache::FingerprintOf("fused " + cache::RawBytes(exact), {});
}

at::Tensor FrozenForward::Outcome(const at::Tensor& batch) const {
  return prefix_->fused == nullptr ? prefix_->frozen.Run(batch) : prefix_->fused->Run(batch);
}

void FrozenForward::CountPass() {
  if (options_.passes_per_epoch > 0 && ++prefix_->cached_passes % options_.passes_per_epoch == 0) ledger_.EpochPassed();
}

at::Tensor FrozenForward::Compute(const at::Tensor& input, FusedPrefix* fused) {
  ledger_.BeginCompute();
  at::Tensor output = fused != nullptr ? fused->Run(input) : prefix_->frozen.Run(input);
  ledger_.EndCompute();
  return output;
}

at::Tensor FrozenForward::Prove(const at::Tensor& input, const BatchSamples& samples, FusedPrefix* fused) {
  prefix_->fused = fused != nullptr && fused->is_fused() ? fused : nullptr;
  at::Tensor output = Compute(input, prefix_->fused);
  const double begin = ledger_.Now();
  ledger_.Missed("unproven", input.size(0));
  const auto compute = [this](const at::Tensor& batch) { return Outcome(batch); };
  if (output.dim() == 0 || output.size(0) != input.size(0) || !output.is_contiguous()) {
    Refuse("their output has no dense row for each sample");
  } else if (!RowsAreIndependent(compute, input, output)) {
    Refuse("their result for a sample depends on its place in the batch or on the other samples");
  } else {
    prefix_->input_shape = input.sizes().vec();
    prefix_->output_shape = output.sizes().vec();
    prefix_->output_type = output.scalar_type();
    prefix_->fingerprint = FingerprintFor(input);
    prefix_->contents.emplace(prefix_->frozen.Watch());
    options_.cache->Use(*prefix_->fingerprint);
    Offer(samples, cache::HashRows({samples.host_input}), AllRows(input.size(0)), output);
  }
  ledger_.Proved(begin);
  return output;
}

at::Tensor FrozenForward::RunCached(const at::Tensor& input, const BatchSamples& samples) {
  ledger_.Ask();
  const std::vector<uint64_t> hashes = cache::HashRows({samples.host_input});
  const double patience = ledger_.patience(absl::ToDoubleSeconds(options_.cache->patience()));
  cache::CachedBatch batch = options_.cache->Take(samples.ids, hashes, patience);
  const bool fits = batch.tensors.size() == 1 && batch.tensors[0].sizes() == prefix_->output_shape &&
                    batch.tensors[0].scalar_type() == prefix_->output_type;
  const std::vector<int64_t> missing = ledger_.Answer(cache::MissReasons(batch.outcomes), fits);
  const bool some_hit = missing.size() < samples.ids.size();
  switch (ledger_.Decide(missing.empty() || (some_hit && FillIn(input, missing, &batch.tensors[0])))) {
    case Step::kSkip: break;
    case Step::kAudit: return Audit(input, samples, hashes, missing, batch.tensors[0]);
    case Step::kCompute: {
      at::Tensor output = Compute(input, prefix_->fused);
      if (some_hit) LearnWhetherAlone(input, output, missing.size());
      ledger_.Resume();
      Offer(samples, hashes, missing, output);
      ledger_.Kept(options_.cache->client().counters().seconds_behind());
      return output;
    }
  }
  ledger_.Resume();
  Offer(samples, hashes, missing, batch.tensors[0]);
  ledger_.Skipped();
  return std::move(batch.tensors[0]);
}

int64_t FrozenForward::SizeAlone(size_t samples, int64_t batch) const {
  for (const int64_t size : SizesAlone(batch)) {
    if (size < static_cast<int64_t>(samples)) continue;
    const auto known = prefix_->computes_alone.find(size);
    if (known == prefix_->computes_alone.end() || known->second) return size;
  }
  return 0;
}

bool FrozenForward::FillIn(const at::Tensor& input, const std::vector<int64_t>& missing, at::Tensor* output) {
  const int64_t size = SizeAlone(missing.size(), input.size(0));
  if (size == 0 || !prefix_->computes_alone.contains(size)) return false;
  std::vector<int64_t> rows = missing;
  rows.resize(static_cast<size_t>(size), missing[0]);
  const at::Tensor alone = Outcome(input.index_select(0, Index(rows, device_)));
  output->index_copy_(0, Index(missing, device_), alone.narrow(0, 0, static_cast<int64_t>(missing.size())));
  return true;
}

void FrozenForward::LearnWhetherAlone(const at::Tensor& input, const at::Tensor& output, size_t samples) {
  const int64_t size = SizeAlone(samples, input.size(0));
  if (size == 0 || prefix_->computes_alone.contains(size)) return;
  const double begin = ledger_.Now();
  const auto compute = [this](const at::Tensor& batch) { return Outcome(batch); };
  prefix_->computes_alone[size] = RowsComputeAlone(compute, input, output, size);
  ledger_.Proved(begin);
}

at::Tensor FrozenForward::Audit(const at::Tensor& input, const BatchSamples& samples,
                                const std::vector<uint64_t>& hashes, const std::vector<int64_t>& missing,
                                const at::Tensor& fetched) {
  at::Tensor output = Compute(input, prefix_->fused);
  if (SameBits(output, fetched)) {
    Offer(samples, hashes, missing, output);
  } else {
    Refuse("the cache has other activations than they compute");
    options_.cache->Drop(*prefix_->fingerprint);
  }
  return output;
}

void FrozenForward::Offer(const BatchSamples& samples, const std::vector<uint64_t>& hashes,
                          const std::vector<int64_t>& rows, const at::Tensor& output) {
  if (rows.empty()) return;
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

CacheTotals FrozenForward::totals() const {
  CacheTotals totals = TotalsOf(ledger_, options_.cache.get());
  if (!prefix_.has_value()) {
    totals.state = "unfrozen";
    totals.reason = "nothing is frozen";
  } else if (!prefix_->refusal.empty()) {
    totals.state = "refused";
    totals.reason = prefix_->refusal;
  }
  return totals;
}

}  // namespace egeria::worker
