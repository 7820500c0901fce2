#ifndef EGERIA_CONTROLLER_REPLAY_REPLAY_H_
#define EGERIA_CONTROLLER_REPLAY_REPLAY_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/policy/policy.h"
#include "common/policy/policy_config.h"

namespace egeria::controller {

// One line of a recording.
struct Recorded {
  int64_t line = 0;  // from 1
  policy::Observation observation;
  // One value per module; observation.plasticity is empty then, and observation.module does not count.
  std::vector<std::optional<double>> plasticity_by_module;
  // Somebody other than the policy set the frozen prefix here.
  std::optional<int> adopted_prefix;
};

// Parses a recording: one JSON object a line,
//
//   {"step":120,"module":0,"plasticity":0.0031,"loss":1.82,"lr":0.1}
//
// in which anything but the step may be absent or null. A plasticity without a module is that of the module
// which is frontmost then. It may be an array with one number or null per module, of which the frontmost one
// counts; every array has the same length. {"step":200,"adopt":2} says that somebody else (an operator, a
// checkpoint) set the frozen prefix to 2. "zero_lr_prefix" and "frozen_by_script" are numbers, "gradients" and
// "account" are objects as FormatObservation() writes them, and a line {"job":{..}}, as FormatJob() does, tells the
// shape of the job. Steps do not decrease, but at an "adopt", where a job may have gone on from an older checkpoint.
// Empty lines are skipped; other keys are collected and otherwise ignored.
//
// Errors: INVALID_ARGUMENT [BAD_RECORDING] with the line's number and what to do about it.
// Thread-compatible.
class RecordingParser {
 public:
  // Parses the next line, without its end. Empty for an empty line, and for one that tells of the job.
  absl::StatusOr<std::optional<Recorded>> ParseLine(absl::string_view line);

  // The length of the arrays seen so far, 0 where there was none.
  int array_length() const { return array_length_; }
  const std::set<std::string>& unknown_keys() const { return unknown_keys_; }
  // The job that a line with a "job" has told of.
  const std::optional<policy::JobShape>& job() const { return job_; }

 private:
  int64_t line_ = 0;
  int64_t step_ = 0;
  int array_length_ = 0;
  std::set<std::string> unknown_keys_;
  std::optional<policy::JobShape> job_;
};

// Feeds a recording to a fresh policy of a job of `modules` layer modules and returns its decisions.
// Errors: INVALID_ARGUMENT [BAD_RECORDING] a line names a module or prefix that the job does not have, or
// has an array of another length.
absl::StatusOr<std::vector<policy::Decision>> Replay(const std::vector<Recorded>& recording, int modules,
                                                     policy::Policy& policy);

// Lines of a recording, without an end of line. Doubles are written so that they are read back exactly;
// one that is not finite, which no policy counts and JSON does not have, is left out.
std::string FormatObservation(const policy::Observation& observation);
std::string FormatJob(const policy::JobShape& shape);
std::string FormatAdoption(int64_t step, int frozen_prefix);

// {"step":..,"action":"freeze","frozen_prefix":..,"reason":".."}, without an end of line.
std::string FormatDecision(const policy::Decision& decision);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_REPLAY_REPLAY_H_
