#ifndef EGERIA_WORKER_FREEZE_PARTITION_H_
#define EGERIA_WORKER_FREEZE_PARTITION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace egeria::worker {

// A partition has to know this of a block of a model.
struct BlockInfo {
  std::string name;   // such as "stage2.block4"
  std::string stage;  // such as "stage2"; blocks of one stage are consecutive
  int64_t parameter_count = 0;
};

struct PartitionOptions {
  // A stage is cut into layer modules of about this share of the model's parameters.
  double target_share = 0.125;
  // A stage with less than this share is joined to the stage that follows it.
  double smallest_share = 0.01;
  // Patterns override all of the above: the blocks whose whole name matches pattern i (ECMAScript) are module i.
  std::vector<std::string> patterns;
};

// Blocks begin..end-1 form a layer module.
struct ModuleCut {
  std::string name;
  int begin = 0;
  int end = 0;
  friend bool operator==(const ModuleCut&, const ModuleCut&) = default;
};

// Cuts a model into layer modules by its structure and its parameter sizes (paper, figure 11): large stages
// are split finer, at block boundaries and into pieces of similar size, small ones stay whole, and a tiny
// first stage (a stem) joins the next. The last stage (the head) is always a module of its own, because the
// last module never freezes.
//
// Errors: INVALID_ARGUMENT [BAD_PARTITION] fewer than two modules; a pattern that is not a regular
// expression or matches no block; a block that no pattern matches; modules that are not consecutive.
absl::StatusOr<std::vector<ModuleCut>> Partition(const std::vector<BlockInfo>& blocks, const PartitionOptions& options);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_FREEZE_PARTITION_H_
