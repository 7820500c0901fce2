#include "worker/freeze/partition.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <regex>

#include "common/base/status.h"

namespace egeria::worker {
namespace {

template <typename... Args>
absl::Status Bad(const Args&... message) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_PARTITION", message...);
}

int64_t Parameters(const std::vector<BlockInfo>& blocks, int begin, int end) {
  return std::accumulate(blocks.begin() + begin, blocks.begin() + end, int64_t{0},
                         [](int64_t sum, const BlockInfo& block) { return sum + block.parameter_count; });
}

std::string NameOf(const std::vector<BlockInfo>& blocks, int begin, int end) {
  if (end - begin == 1) return blocks[begin].name;
  return absl::StrCat(blocks[begin].name, "-", blocks[end - 1].name);
}

// Cuts blocks begin..end-1 into at most `pieces` runs, each closed as soon as it has reached its part of
// what was left when it began.
void CutStage(const std::vector<BlockInfo>& blocks, int begin, int end, int pieces, std::vector<ModuleCut>* cuts) {
  while (begin < end) {
    const double part = static_cast<double>(Parameters(blocks, begin, end)) / pieces;
    int stop = begin + 1;
    // Takes one more block as long as that brings the run closer to its part.
    while (stop < end - (pieces - 1) &&
           std::abs(Parameters(blocks, begin, stop + 1) - part) <= std::abs(Parameters(blocks, begin, stop) - part)) {
      ++stop;
    }
    if (pieces == 1) stop = end;
    cuts->push_back({NameOf(blocks, begin, stop), begin, stop});
    begin = stop;
    --pieces;
  }
}

absl::StatusOr<std::vector<ModuleCut>> ByPatterns(const std::vector<BlockInfo>& blocks,
                                                  const std::vector<std::string>& patterns) {
  std::vector<int> module_of(blocks.size(), -1);
  for (size_t p = 0; p < patterns.size(); ++p) {
    std::regex expression;
    try {
      expression = std::regex(patterns[p]);
    } catch (const std::regex_error& error) {
      return Bad("'", patterns[p], "' is not a regular expression: ", error.what());
    }
    bool used = false;
    for (size_t b = 0; b < blocks.size(); ++b) {
      if (!std::regex_match(blocks[b].name, expression)) continue;
      if (module_of[b] >= 0) {
        return Bad("block '", blocks[b].name, "' matches both '", patterns[module_of[b]], "' and '", patterns[p], "'");
      }
      module_of[b] = static_cast<int>(p);
      used = true;
    }
    if (!used) return Bad("'", patterns[p], "' matches no block; the first is '", blocks[0].name, "'");
  }
  std::vector<ModuleCut> cuts;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (module_of[b] < 0) return Bad("no pattern matches block '", blocks[b].name, "'");
    const int expected = static_cast<int>(cuts.size());
    if (!cuts.empty() && module_of[b] == expected - 1) {
      cuts.back().end = static_cast<int>(b) + 1;
    } else if (module_of[b] == expected) {
      cuts.push_back({"", static_cast<int>(b), static_cast<int>(b) + 1});
    } else {
      return Bad("block '", blocks[b].name, "' of pattern '", patterns[module_of[b]],
                 "' is out of order: each pattern must match consecutive blocks, in the model's order");
    }
  }
  for (ModuleCut& cut : cuts) cut.name = NameOf(blocks, cut.begin, cut.end);
  return cuts;
}

}  // namespace

absl::StatusOr<std::vector<ModuleCut>> Partition(const std::vector<BlockInfo>& blocks,
                                                 const PartitionOptions& options) {
  if (blocks.size() < 2) return Bad("a model of ", blocks.size(), " blocks cannot be frozen in part");
  std::vector<ModuleCut> cuts;
  const int count = static_cast<int>(blocks.size());
  if (!options.patterns.empty()) {
    EGERIA_ASSIGN_OR_RETURN(cuts, ByPatterns(blocks, options.patterns));
  } else {
    const double total = static_cast<double>(std::max<int64_t>(1, Parameters(blocks, 0, count)));
    int begin = 0;
    int carried = 0;  // this run begins with the tiny stages that wait for the next one
    while (begin < count) {
      int end = begin + 1;
      while (end < count && blocks[end].stage == blocks[begin].stage) ++end;
      // The head must not be joined, nor must anything wait for it.
      const bool head = end == count;
      const bool before_head = end < count && blocks[end].stage == blocks[count - 1].stage;
      const double share = Parameters(blocks, carried, end) / total;
      if (!head && !before_head && share < options.smallest_share) {
        begin = end;
        continue;
      }
      if (head) {
        cuts.push_back({NameOf(blocks, begin, end), begin, end});
      } else {
        // There are not more pieces than the stage itself has blocks, or the tiny ones before it would become pieces.
        const int pieces = std::clamp(static_cast<int>(std::lround(share / options.target_share)), 1, end - begin);
        CutStage(blocks, carried, end, pieces, &cuts);
      }
      begin = carried = end;
    }
  }
  if (cuts.size() < 2) return Bad("one layer module only: the last never freezes, so nothing could be frozen");
  return cuts;
}

}  // namespace egeria::worker
