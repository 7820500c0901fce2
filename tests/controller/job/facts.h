#ifndef EGERIA_TESTS_CONTROLLER_JOB_FACTS_H_
#define EGERIA_TESTS_CONTROLLER_JOB_FACTS_H_

#include <cstdint>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "controller/job/job_state.h"
#include "egeria/storage/v1/journal.pb.h"

// Facts for tests of the state, the journal and recovery.
namespace egeria::controller {

// TestRegistration(number) with its policy resolved and without graphs.
storage::v1::Fact RegisteredFact(int number);
storage::v1::Fact ReadingFact(int64_t step, int module, double plasticity);
storage::v1::Fact PauseFact(bool paused);
storage::v1::Fact ModeFact(v1::Mode mode);
storage::v1::Fact GenerationFact(int64_t generation, int64_t step, int frozen_prefix, int64_t applied_plan);

// Any kind of fact: mostly one that `state` can take next, now and then one that it cannot.
storage::v1::Fact RandomFact(const JobState& state, std::mt19937& random);

// Tests of requests begin at this time.
inline const absl::Time kStart = absl::FromUnixSeconds(1'700'000'000);

// Returns what a refusal says.
inline std::string Why(const absl::Status& status) { return std::string(status.message()); }

}  // namespace egeria::controller

#endif  // EGERIA_TESTS_CONTROLLER_JOB_FACTS_H_
