#include "common/config/environment.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace egeria::config {
namespace {

constexpr const char* kPrefix = "EGERIA_";

// Launcher, trainer and package read these, without the prefix. EGERIA_BIN is for the tests.
constexpr const char* kKnown[] = {
    "ADMIN",
    "BIN",
    "BUDGET",
    "CACHE",
    "CACHE_COMPRESSION",
    "CACHE_FORMAT",
    "CACHE_PRECISION",
    "CACHE_JOB_QUOTA",
    "CACHE_USE",
    "CONTROLLER",
    "ENABLED",
    "FROZEN_FORWARD",
    "GENERATION",
    "JOB_ID",
    "JOB_SECRET",
    "METRICS",
    "NODE",
    "OBSERVE",
    "ON_DIVERGENCE",
    "PIN_FROZEN_MODES",
    "PRETRAINED",
    "POLICY",
    "POLICY_OPTIONS",
    "PYTHON",
    "REFERENCE",
    "SOURCE",
    "TLS_CA",
    "TLS_CERT",
    "TLS_KEY",
    "TORCHRUN",
    "TOTAL_STEPS",
    "TRAINING_JOB",
    "TRIAL",
    "TRUSTED_USERS",
    "WORKER_METRICS",
};

bool IsOfDaemon(const std::string& name) {
  return absl::StartsWith(name, "CONTROLLER_") || absl::StartsWith(name, "CACHE_");
}

}  // namespace

Environment ProcessEnvironment() {
  Environment environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return environment;
}

size_t EditDistance(const std::string& from, const std::string& to) {
  std::vector<size_t> row(to.size() + 1);  // Levenshtein's distance, a row at a time
  for (size_t j = 0; j <= to.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= from.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= to.size(); ++j) {
      const size_t substituted = diagonal + (from[i - 1] == to[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({substituted, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

std::string Nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, word.size() / 2) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(word, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> UnknownVariables(const Environment& environment) {
  const std::vector<std::string> known(std::begin(kKnown), std::end(kKnown));
  std::vector<std::string> sentences;
  for (auto found = environment.lower_bound(kPrefix); found != environment.end(); ++found) {
    if (!absl::StartsWith(found->first, kPrefix)) break;
    const std::string name = found->first.substr(std::string(kPrefix).size());
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const bool switches_off = name == "OFF" || name == "DISABLE" || name == "DISABLED";
    const std::string nearest = switches_off ? "ENABLED" : Nearest(name, known);
    if (IsOfDaemon(name) && (nearest.empty() || EditDistance(name, nearest) > 2)) continue;
    sentences.push_back(absl::StrCat(found->first, " is set, but nothing reads it",
                                     nearest.empty()
                                         ? "; docs/reference/config.md lists what is read"
                                         : absl::StrCat("; the nearest variable that is read is ", kPrefix, nearest)));
  }
  return sentences;
}

void WarnOfUnknownVariables() {
  for (const std::string& unknown : UnknownVariables(ProcessEnvironment())) LogWarning("[UNKNOWN_VARIABLE] ", unknown);
}

}  // namespace egeria::config
