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
// fetch counts only where no sample was missing. From then on it is used while a fetch takes less than the forward pass
// of the frozen layers (kSwitchOn of it, to be switched on), and so do, on average, the last kRemembered passes that
// asked, those that had to compute in the end among them. It is left off where that is not so, to be tried again after
// kFirstRest passes, and after twice as many each time. It is off as well where three epochs have brought no skipped
// pass: the first epoch stores, and the last batches of a short one may be asked for before they are written.
//
// A sample's activation is the same in two epochs only if its input is. So nothing is done before SamplesRepeat(true).
//
// Owned by the training thread.
class CostModel {
 public:
  static constexpr size_t kEnough = 8;       // measurements, for a decision
  static constexpr size_t kRemembered = 31;  // measurements, whose median counts where nothing else is said
  static constexpr double kSwitchOn = 0.9;
  static constexpr int64_t kFirstRest = 512;  // passes
  static constexpr int64_t kLongestRest = 65'536;
  static constexpr double kPatienceShare = 0.5;
  static constexpr double kLongestPatience = 0.25;  // seconds

  enum class State {
    kUnknown,  // nobody has said whether samples repeat
    kTrying,   // passes go through the cache, for measurements
    kOn,
    kOff,
  };

  // A training pass begins; returns whether it goes through the cache.
  bool Use();

  // Samples come to the model as they came before, or not; false switches off until true is said.
  void SamplesRepeat(bool repeat);

  // A pass was computed as usual: the frozen layers took so long.
  void Computed(double seconds);
  // A pass went through the cache, and the frozen layers were computed nevertheless. `seconds` were spent on asking,
  // hashing and keeping.
  void Filled(double seconds);
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
  void Decide();
  void Rest();

  State state_ = State::kUnknown;
  bool samples_differ_ = false;
  std::string reason_ = "it is not known yet whether samples come again as they were";
  Recent forward_;
  Recent fetch_;
  Recent fill_;
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
