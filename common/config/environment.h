#ifndef EGERIA_COMMON_CONFIG_ENVIRONMENT_H_
#define EGERIA_COMMON_CONFIG_ENVIRONMENT_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace egeria::config {

// Variables of the environment, by name.
using Environment = std::map<std::string, std::string>;
Environment ProcessEnvironment();

// Returns a sentence, without its full stop, for each variable of the environment that begins with EGERIA_ and that
// nothing reads: it names the nearest one that is read. The variables of the daemons (EGERIA_CONTROLLER_..., and
// EGERIA_CACHE_...), which check their own, count only where they are a slip of the pen away from a training's.
std::vector<std::string> UnknownVariables(const Environment& environment);

// Logs a warning for each of them, [UNKNOWN_VARIABLE].
void WarnOfUnknownVariables();

// How many insertions, deletions and replacements of a character lead from one word to the other.
size_t EditDistance(const std::string& from, const std::string& to);

// The candidate that takes the fewest edits to become `word`; "" where none is near.
std::string Nearest(const std::string& word, const std::vector<std::string>& candidates);

}  // namespace egeria::config

#endif  // EGERIA_COMMON_CONFIG_ENVIRONMENT_H_
