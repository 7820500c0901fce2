#ifndef EGERIA_WORKER_TRAINER_PROGRESS_H_
#define EGERIA_WORKER_TRAINER_PROGRESS_H_

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace egeria::trainer {

// One moment of a run, as people want to see it.
struct Moment {
  int64_t step = 0;
  int64_t total_steps = 0;
  int64_t epoch = 0;  // from 1
  int64_t epochs = 0;
  double loss = 0;
  double learning_rate = 0;
  int frozen_prefix = 0;
  int modules = 0;
  std::optional<double> saved_seconds;  // by freezing, less what Egeria took; empty: not known
  absl::Duration left;
};

// "  41%  epoch 13/30  step 520/1260  loss 0.1034  lr 0.05  frozen 2/5  saved 3.1 s  left 0:41"
std::string Describe(const Moment& moment);

// A bar that is redrawn in place on a terminal, else a line every few seconds. Owned by one thread.
class Progress {
 public:
  Progress(std::FILE* out, bool terminal, absl::Time now, int64_t first_step);

  // True when it is time to show something: asking for the loss may cost a wait for the device.
  bool Due(absl::Time now) const { return now >= next_; }
  // Prints. Fills in `left` from the pace since the start.
  void Show(Moment moment, absl::Time now);
  // A line that stays, such as a switch.
  void Say(const std::string& line);
  void Finish();

 private:
  std::FILE* const out_;
  const bool terminal_;
  const absl::Time start_;
  const int64_t first_step_;
  absl::Time next_;
  bool bar_shown_ = false;
};

}  // namespace egeria::trainer

#endif  // EGERIA_WORKER_TRAINER_PROGRESS_H_
