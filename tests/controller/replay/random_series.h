#ifndef EGERIA_TESTS_CONTROLLER_REPLAY_RANDOM_SERIES_H_
#define EGERIA_TESTS_CONTROLLER_REPLAY_RANDOM_SERIES_H_

#include <cstdint>
#include <vector>

#include "tests/controller/replay/rule_oracle.h"

namespace oracle {

struct Case {
  Rule rule;
  std::vector<Line> lines;
};

// A training that might have been: a rule with random constants, losses, a learning-rate schedule, and
// plasticities (decays, plateaus, steps, random walks, constants) of each module. The same seed gives the
// same case.
Case RandomCase(uint64_t seed);

}  // namespace oracle

#endif  // EGERIA_TESTS_CONTROLLER_REPLAY_RANDOM_SERIES_H_
