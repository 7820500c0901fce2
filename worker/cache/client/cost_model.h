#ifndef EGERIA_WORKER_CACHE_CLIENT_COST_MODEL_H_
#define EGERIA_WORKER_CACHE_CLIENT_COST_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace egeria::cache {

// Decides whether the training goes through the cache for a frozen prefix: only where the forward time that it saves is
// longer than the time that it takes, both as measured.
//
// The first passes go through the cache so that there is something to measure; in the first epoch, in which it fills, a
// fetch counts only where no sample was missing. From then on it is used while two conditions hold. A fetch takes less
// than the forward pass of the frozen layers, or less than kSwitchOn of it where the cache is off. The last kRemembered
// passes that asked, with those that had to compute in the end, take less on average, too. Otherwise it is left off, to
// be tried again after kFirstRest passes, and after twice as many each time. It is off as well where three epochs have
// brought no skipped pass: the first epoch stores, and the last batches of a short one may be asked for before they are
// written.
//
// A sample's activation is the same in two epochs only if its input is, and that shows in the second one. Until
// SamplesRepeat() says it, passes are kept at a risk, so that the first epoch fills the cache: all of them where
// samples are likely to repeat, none where they are not, and else as many as take kWriteShare of the steps' time.
// Whatever is known, a pass is not kept where that takes longer than the forward pass that it may save.
//
// Owned by the training thread.
class CostModel {
 public:
  static constexpr size_t kEnough = 8;       // measurements, for a decision
  static constexpr size_t kRemembered = 31;  // measurements, whose median counts where nothing else is said
  static constexpr size_t kFewWrites = 3;    // measurements, before a write counts as too dear
  static constexpr double kSwitchOn = 0.9;
  static constexpr double kWriteShare = 0.02;
  static constexpr int64_t kFirstRest = 512;  // passes
  static constexpr int64_t kLongestRest = 65'536;
  static constexpr double kPatienceShare = 0.5;
  static constexpr double kLongestPatience = 0.25;  // seconds

  enum class State {
    kUnknown,  // nobody has said whether samples repeat; some passes may be kept
    kTrying,   // passes go through the cache, for measurements
    kOn,
    kOff,
  };

  // A training pass begins, so many seconds after the one before (0: the first one); returns whether it goes through
  // the cache.
  bool Use(double step_seconds = 0);

  // Samples come to the model as they came before, or not; false switches off until true is said.
  void SamplesRepeat(bool repeat);
  // They are likely to do so, or not, before that is known; nothing: there is no sign of it.
  void SamplesMayRepeat(std::optional<bool> likely) { likely_ = likely; }

  // A pass was computed as usual: the frozen layers took so long.
  void Computed(double seconds);
  // A pass went through the cache, and the frozen layers were computed nevertheless. `seconds` were spent on asking,
  // hashing and keeping.
  void Filled(double seconds);
  // Other threads and processes have spent so many seconds of processor time on writing, since some moment before the
  // first call.
  void WrittenBehind(double total_seconds);
  // The frozen layers were skipped in a pass. `seconds` were spent until their results were there, those of misses
  // included; `hit_share` of the samples was in the cache.
  void Fetched(double seconds, double hit_share);
  // The cache has cost other seconds, such as those of a proof.
  void Spent(double seconds);
  // Every sample has come again since Use() has begun to return true, or since the last call.
  void EpochPassed();

  struct Estimates {
    State state = State::kUnknown;
    std::optional<double> forward_seconds;  // a pass of the frozen layers
    std::optional<double> fetch_seconds;    // a skipped pass
    double saved_seconds = 0;               // so far, less what was spent
    std::string reason;                     // for people
  };
  Estimates estimates() const;
  State state() const { return state_; }
  // All that was told to Filled(), Fetched() and Spent() so far.
  double spent_seconds() const { return spent_seconds_; }

  // A pass may wait so many seconds for the cache: kPatienceShare of what it could save, and no more than
  // kLongestPatience; 0 while that is not known.
  double patience() const;

 private:
  // Holds the last kRemembered values of a quantity.
  class Recent {
   public:
    void Add(double value);
    size_t size() const { return values_.size(); }
    std::optional<double> median() const;
    double mean() const;  // requires some
    void clear() { values_.clear(); }

   private:
    std::vector<double> values_;
    size_t next_ = 0;
  };

  void Asked(double seconds);
  // Returns what it takes to keep a pass, with what others do for it; nothing before it is known.
  std::optional<double> write_seconds() const;
  bool MayWriteAtARisk() const;
  void Decide();
  void Rest();

  State state_ = State::kUnknown;
  bool samples_differ_ = false;
  std::optional<bool> likely_;
  std::string reason_ = "it is not known yet whether samples come again as they were";
  Recent forward_;
  Recent fetch_;
  Recent fill_;
  Recent step_;
  double steps_seconds_ = 0;    // that have passed, but for what held single steps up
  double written_seconds_ = 0;  // the sum of what was told to Filled()
  int64_t fills_ = 0;
  // Others had spent the first one when that was first told, and the second one since, for so many fills.
  std::optional<double> behind_before_;
  double behind_seconds_ = 0;
  int64_t fills_behind_ = 0;
  Recent asked_;  // seconds from asking to having the result, since the cache is on
  int64_t passes_ = 0;
  int64_t resume_at_ = 0;
  int64_t rest_ = kFirstRest;
  int64_t hits_ = 0;          // skipped passes, in this epoch
  bool filling_ = true;       // no epoch has passed since it was first tried, or tried again
  int fruitless_epochs_ = 0;  // in a row: nothing was skipped, or it did not pay
  double saved_before_epoch_ = 0;
  double saved_seconds_ = 0;
  double spent_seconds_ = 0;
};

// "unknown", "trying", "on" or "off".
const char* StateName(CostModel::State state);

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_COST_MODEL_H_
