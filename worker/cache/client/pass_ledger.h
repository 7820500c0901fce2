#ifndef EGERIA_WORKER_CACHE_CLIENT_PASS_LEDGER_H_
#define EGERIA_WORKER_CACHE_CLIENT_PASS_LEDGER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/cache/client/cost_model.h"

namespace egeria::cache {

// Says what becomes of each training pass over a frozen prefix, and keeps the books: how many passes were skipped, why
// samples were computed, and what all that has saved and cost. A front end, which knows tensors, drives it through one
// pass:
//
//   Begin ── false: computed as usual
//     └─ Ask, Answer, Decide ── kSkip:    Resume, Skipped
//                            ├─ kCompute: BeginCompute, EndCompute, Resume, Kept
//                            └─ kAudit:   BeginCompute, EndCompute, and a comparison
//
// The time from Ask to Decide and from Resume on is the cache's; what a front end does in between (the model's own
// forward pass) is not. A pass may end at any point: the next Begin starts anew.
//
// Owned by the training thread.
class PassLedger {
 public:
  // Returns seconds of a steady clock; with `wait`, once the device has done what it was given.
  using Clock = std::function<double(bool wait)>;

  struct Counts {
    int64_t passes = 0;          // training passes with a frozen prefix
    int64_t passes_skipped = 0;  // none of its layers ran
    int64_t passes_spared = 0;   // computed to be kept, from behind a shallower prefix on
    int64_t hits = 0;            // samples whose frozen forward pass was skipped
    // Samples by the reason why they were computed; passes for "no_ids".
    std::map<std::string, int64_t> misses;
    int64_t proofs = 0;
    int64_t audits = 0;  // passes that were computed though they might have been skipped, to be compared
    int64_t failures = 0;
  };

  // With `always` the cache is used whether or not it pays.
  PassLedger(Clock clock, bool always) : clock_(std::move(clock)), always_(always) {}

  // Another prefix is frozen, or none: what is measured begins anew. Counts, saved and spent seconds go on.
  void Follow();
  // CostModel says what these are for.
  void SamplesRepeat(bool repeat) { cost_.SamplesRepeat(repeat); }
  void SamplesMayRepeat(std::optional<bool> likely) { cost_.SamplesMayRepeat(likely); }
  void EpochPassed() { cost_.EpochPassed(); }

  // A training pass begins; returns whether it goes through the cache. Where it is not known which samples it holds,
  // `samples` is empty. With `on_host` the clock has no device to wait for, so that each pass is timed.
  bool Begin(std::optional<int64_t> samples, bool on_host);
  // So many samples of the pass are computed for this reason.
  void Missed(const std::string& reason, int64_t samples);
  // Something of the cache's has failed, and these samples are computed.
  void Failed(int64_t samples);

  // The front end times some things itself: it has spent the time since one of Now(), on anything, or on a proof, which
  // counts to no pass.
  double Now() const { return clock_(timed_); }
  void Spent(double since) { cost_.Spent(Now() - since); }
  void Proved(double since);

  // The cache is asked for the samples of this pass.
  void Ask() {
    spent_ = 0;
    Resume();
  }
  // The cache has answered: `reasons` tell for each sample why it is a miss, "" for a hit. Where what was found does
  // not look as it must, it does not fit, and hits are misses ("unfit"). Returns the positions of the missing samples.
  std::vector<int64_t> Answer(const std::vector<std::string>& reasons, bool fits);
  enum class Step { kCompute, kSkip, kAudit };
  // Decides what becomes of the pass. It is `filled` if no sample is missing, or those that were have been computed
  // alone.
  Step Decide(bool filled);
  // The time is the cache's again.
  void Resume() { since_ = Now(); }
  // The decision has been carried out: the frozen layers were not run, or what they gave was offered to the cache. Both
  // count in each pass, though on a device only the host's time does in those that are not timed.
  void Skipped();
  // Other threads and the daemon have spent so many seconds of processor time on writing so far.
  void Kept(double seconds_behind = 0);

  // The pass began behind a shallower prefix that is kept, which saved so many seconds less what that took.
  void Spared(double seconds);

  // The frozen layers' own forward pass of the whole batch lies between these.
  void BeginCompute() { computing_since_ = Now(); }
  void EndCompute();

  // A pass may wait so many seconds for the cache: `longest` where it is used always.
  double patience(double longest) const { return always_ ? longest : cost_.patience(); }
  // Returns whether the next pass may ask the cache.
  bool in_use() const;

  const Counts& counts() const { return counts_; }
  // The estimates are the present prefix's; only saved_seconds are those of all prefixes.
  CostModel::Estimates estimates() const;
  double spent_seconds() const { return spent_before_ + cost_.spent_seconds(); }
  // Returns "on: <reason>" or "off: <reason>" once after each such decision on a prefix; else nothing.
  std::optional<std::string> News();

  // So many passes were or might have been skipped. Audits are due by this number.
  int64_t skippable() const { return skippable_; }
  void set_skippable(int64_t passes) { skippable_ = passes; }

 private:
  const Clock clock_;
  const bool always_;

  CostModel cost_;
  Counts counts_;
  double saved_before_ = 0;  // by earlier prefixes
  double spent_before_ = 0;  // for earlier prefixes
  int64_t skippable_ = 0;
  std::optional<CostModel::State> told_;
  std::optional<double> last_began_;

  // These are about the pass under way.
  bool timed_ = true;
  int64_t samples_ = 0;
  int64_t hits_ = 0;
  double since_ = 0;  // when the time became the cache's
  double spent_ = 0;  // the cache's time before that
  double computing_since_ = 0;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_PASS_LEDGER_H_
