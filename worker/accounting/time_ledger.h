#ifndef EGERIA_WORKER_ACCOUNTING_TIME_LEDGER_H_
#define EGERIA_WORKER_ACCOUNTING_TIME_LEDGER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace egeria::worker {

// Egeria spends the training's time on these; docs/reference/metrics.md says more.
namespace spent_on {
inline constexpr const char* kAgreement = "agreement";  // the ranks agree on plans
inline constexpr const char* kCache = "cache";
inline constexpr const char* kGradients = "gradients";  // readings of them
inline constexpr const char* kHooks = "hooks";          // everything else
inline constexpr const char* kProbes = "probes";
inline constexpr const char* kRecompiles = "recompiles";  // whatever makes a step after a switch slow
inline constexpr const char* kReference = "reference";    // a controller evaluates it on the same cores
inline constexpr const char* kSnapshots = "snapshots";
inline constexpr const char* kStart = "start";  // the start of a Python session
inline constexpr const char* kSwitches = "switches";
inline constexpr const char* kAll[] = {kAgreement,  kCache,     kGradients, kHooks, kProbes,
                                       kRecompiles, kReference, kSnapshots, kStart, kSwitches};
// These measure what a policy decides by: a policy that measures nothing would not take their time.
inline constexpr const char* kMeasuring[] = {kGradients, kProbes, kReference, kSnapshots};
}  // namespace spent_on

// The metrics and the controller learn of a ledger, and of a cache's totals, after so many steps each.
inline constexpr int64_t kTotalsEvery = 16;

// A training process's time: the part that freezing has saved, and the part that Egeria has taken.
struct TimeTotals {
  std::optional<double> saved_seconds;          // the time that freezing has saved; empty: not known (yet)
  std::map<std::string, double> spent_seconds;  // the time that Egeria has taken, by what it was spent on
  // The mean time of a step by frozen prefix, without Egeria's own, where there are enough steps to rely on.
  std::map<int, double> seconds_per_step;
  double switch_seconds = 0;  // see TimeLedger::SwitchSeconds()

  double total_spent_seconds() const;
  double measuring_seconds() const;  // the part that was spent on spent_on::kMeasuring
};

// Adds up seconds, from step to step and by what they were spent on: one of spent_on.
//
// With c_k the mean time of a step at frozen prefix k, without Egeria's own, and n_k the number of such steps, freezing
// has saved the sum over k of n_k (c_0 - c_k). Steps in which something unusual happened count with c_k; what they took
// beyond that is spent on kRecompiles.
//
// Owned by the training thread.
class TimeLedger {
 public:
  using Clock = std::function<double()>;  // in seconds
  TimeLedger();                           // by the monotonic clock
  explicit TimeLedger(Clock now) : now_(std::move(now)) {}

  // The time from Begin() to its End() is Egeria's own. They nest: a block inside another is spent on what it says
  // itself, and not on what the outer one says. End() requires a Begin().
  void Begin();
  void End(const std::string& what);
  // Counts like a block, outside of any, where somebody else has measured the time.
  void Add(const std::string& what, double seconds);

  // Says what was taken so far outside of the training thread, of the cores that it could have used; it replaces what
  // was said before. It is not part of any step's time.
  void SetElsewhere(const std::string& what, double seconds) { elsewhere_[what] = seconds; }

  // A Spending is a block that ends with its scope.
  class Spending {
   public:
    Spending(TimeLedger* account, std::string what) : account_(account), what_(std::move(what)) { account_->Begin(); }
    ~Spending() { account_->End(what_); }
    Spending(const Spending&) = delete;
    Spending& operator=(const Spending&) = delete;

   private:
    TimeLedger* const account_;
    const std::string what_;
  };

  // A switch has been made: the step under way has something in it that others do not have, a compilation, say.
  void Disturb() { disturbed_ = true; }

  // Says what compiling the model took when the training began.
  void SetCompilation(double seconds) { compilation_ = seconds; }

  // A training forward pass begins, outside of any block. A disturbed step counts from here, since before it there may
  // have been an evaluation, which nobody has spent.
  void BeginForward();

  // A step ends, during which so many layer modules were frozen, with this share, 0..1, of the parameters.
  void EndStep(int prefix, double share);

  // The mean over the steps of the share of the parameters that was frozen, 0..1.
  double frozen_share() const;
  // The time that freezing has saved so far; the time spent is not taken off. Empty while too few steps without frozen
  // layers have been measured.
  std::optional<double> SavedSeconds() const;
  // The time spent so far, by what it was spent on.
  std::map<std::string, double> SpentSeconds() const;
  // The time saved less the time spent, as a share of what the same steps would have taken without Egeria. It is not
  // over 0 while nothing has frozen, and empty where SavedSeconds() is.
  std::optional<double> NetShare() const;
  // The mean time of a step at each frozen prefix at which so many steps were measured.
  std::map<int, double> SecondsPerStep(int64_t steps = 1) const;
  // Returns the time that the most expensive switch so far has taken, with what its step took beyond others. Before the
  // first one it is that of compiling the model; 0 where nothing is known.
  double SwitchSeconds() const;
  TimeTotals totals() const;

 private:
  struct Block {
    double begin = 0;
    double inner = 0;  // seconds of the blocks inside it
  };

  // A step behind a switch.
  struct Disturbance {
    int prefix = 0;
    double seconds = 0;    // the step's
    double switching = 0;  // the switch's own
  };

  // Returns the seconds that the step took beyond others, by their mean times.
  static double ExcessOf(const Disturbance& disturbance, const std::map<int, double>& means);

  // Keeps a bounded, evenly spread sample of step times, and counts them.
  class Times {
   public:
    void Add(double seconds);
    void AddUnmeasured() { ++count_; }
    int64_t measured() const { return seen_; }
    int64_t count() const { return count_; }
    double Mean() const;  // outliers are left out

   private:
    int64_t count_ = 0;  // all steps
    int64_t seen_ = 0;   // steps whose time was given
    int64_t stride_ = 1;
    std::vector<double> kept_;
    mutable std::optional<double> mean_;  // empty until it is asked for
  };

  Clock now_;
  std::vector<Block> blocks_;
  std::optional<double> last_;  // when the step before ended
  double own_ = 0;              // Egeria's own seconds since then
  bool disturbed_ = false;
  bool in_forward_ = false;  // the step under way has begun a forward pass
  std::map<std::string, double> spent_;
  std::map<std::string, double> elsewhere_;
  std::map<int, Times> times_;
  std::vector<Disturbance> disturbances_;
  double switching_ = 0;  // seconds of switches since the last disturbed step
  double compilation_ = 0;
  double share_steps_ = 0;
  int64_t steps_ = 0;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_ACCOUNTING_TIME_LEDGER_H_
