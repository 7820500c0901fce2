#ifndef EGERIA_WORKER_SESSION_FROZEN_FORWARD_H_
#define EGERIA_WORKER_SESSION_FROZEN_FORWARD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/time/time.h"
#include "worker/cache/client/activation_cache.h"
#include "worker/cache/client/content_watch.h"
#include "worker/cache/client/pass_ledger.h"
#include "worker/freeze/layer_module.h"
#include "worker/session/cache_totals.h"
#include "worker/session/frozen_prefix.h"
#include "worker/session/fused_prefix.h"

namespace egeria::worker {

// Tells which samples a batch holds.
struct BatchSamples {
  std::vector<uint64_t> ids;  // row by row
  at::Tensor host_input;      // the batch as it was before it went to the device: dense
};

// Runs the frozen front of a model, and skips it as far as the node's cache has what it would give.
//
// It is never wrong: an entry counts only for these very weights, this very input, and a batch of this very shape.
// Before any entry counts, it is shown on a real batch, to the bit, that a sample's result depends neither on its place
// nor on the others. Samples that are missing are computed alone only where that, too, was shown to make no difference;
// else the whole batch is computed. Every so many passes are computed as well, and compared with what the cache had. It
// is never in the way: the PassLedger decides whether the cache is used at all.
//
// Where a FusedPrefix runs the modules, what that gives is proven, kept, and compared in audits, under a fingerprint of
// its own: it never mixes with what the modules give as they are.
//
// Owned by the training thread.
class FrozenForward {
 public:
  struct Options {
    std::shared_ptr<cache::ActivationCache> cache;
    bool samples_repeat = true;    // each epoch brings them as they were before: no random augmentation
    int64_t passes_per_epoch = 0;  // 0: not known
    bool always = false;           // use the cache whether or not it pays
    bool tells = true;             // logs what is decided
  };

  explicit FrozenForward(Options options);
  ~FrozenForward() { Stop(/*finished=*/false); }

  // Between steps: the first `count` of `modules` are frozen now. `modules` must outlive this object. Entries of
  // another prefix are forgotten.
  void Follow(const std::vector<LayerModule>& modules, int count);

  // Whether the next pass may ask the cache, so that it is worthwhile to tell what comes.
  bool in_use() const;
  // The batches of the next passes, in order: a hint.
  void Expect(const std::vector<std::vector<uint64_t>>& batches) { options_.cache->Expect(batches); }

  // Whether Follow() was told of a prefix, until Stop().
  bool has_prefix() const { return prefix_.has_value(); }
  // One training pass: returns the output of the last frozen module, without recording gradients. Only while
  // has_prefix(). `fused` runs the modules if it is not null; it follows the same ones, and outlives this object.
  // Exceptions of torch pass through.
  at::Tensor Run(const at::Tensor& input, const BatchSamples& samples, FusedPrefix* fused = nullptr);

  // Ends the line to the cache. The entries of a training that has finished are forgotten, others stay for its
  // resume. Idempotent.
  void Stop(bool finished);

  CacheTotals totals() const;
  // As in totals(), but cheap enough for every step.
  double spent_seconds() const { return ledger_.spent_seconds(); }

 private:
  // Holds what is known of the prefix that is frozen now.
  struct Prefix {
    explicit Prefix(std::span<const LayerModule> modules) : frozen(modules) {}

    const FrozenPrefix frozen;
    FusedPrefix* fused = nullptr;                   // it gives what is kept, if it is not null
    std::optional<cache::Fingerprint> fingerprint;  // once a batch has been seen, and proven
    std::optional<cache::ContentWatch> contents;    // from then on
    std::vector<int64_t> input_shape, output_shape;
    at::ScalarType output_type = at::kFloat;
    std::map<int64_t, bool> computes_alone;  // by number of samples
    std::string refusal;                     // why it is not skipped at all
    int64_t cached_passes = 0;               // passes that the cost model let through
  };

  at::Tensor Compute(const at::Tensor& input, FusedPrefix* fused = nullptr);
  // Returns what is kept of such a batch.
  at::Tensor Outcome(const at::Tensor& batch) const;
  cache::Fingerprint FingerprintFor(const at::Tensor& input) const;
  at::Tensor Prove(const at::Tensor& input, const BatchSamples& samples, FusedPrefix* fused);
  at::Tensor RunCached(const at::Tensor& input, const BatchSamples& samples);
  // Returns whether weights and buffers are those that were proven, to the bit, whoever wrote to them. `input` has the
  // shape of the proof's.
  bool IsAsProven(const at::Tensor& input);
  // Returns how many samples to compute for so many missing ones alone: the least of SizesAlone() that is proven or has
  // not been tried. 0: there is none.
  int64_t SizeAlone(size_t samples, int64_t batch) const;
  // Computes the missing rows of a batch, where it is known that they may be computed alone; false where not.
  bool FillIn(const at::Tensor& input, const std::vector<int64_t>& missing, at::Tensor* output);
  // Finds out, on a batch that was computed as a whole, whether so many samples may be computed alone.
  void LearnWhetherAlone(const at::Tensor& input, const at::Tensor& output, size_t samples);
  // Computes the batch, compares it with what would have been used, and keeps what was missing if both are the same.
  at::Tensor Audit(const at::Tensor& input, const BatchSamples& samples, const std::vector<uint64_t>& hashes,
                   const std::vector<int64_t>& missing, const at::Tensor& fetched);
  void Offer(const BatchSamples& samples, const std::vector<uint64_t>& hashes, const std::vector<int64_t>& rows,
             const at::Tensor& output);
  void Refuse(const std::string& why);
  void CountPass();
  void Leave(bool forget);
  // The ledger's clock.
  double Now(bool wait) const;

  const Options options_;
  std::optional<Prefix> prefix_;
  c10::Device device_ = c10::kCPU;  // the newest pass's
  cache::PassLedger ledger_;
  bool stopped_ = false;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_FROZEN_FORWARD_H_
