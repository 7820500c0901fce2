#include "controller/web/job_words.h"

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace egeria::controller {
namespace {

// Makes a sentence of what somebody else says, such as a policy.
std::string Sentence(absl::string_view text) {
  std::string sentence(absl::StripAsciiWhitespace(text));
  if (sentence.empty()) return sentence;
  sentence[0] = absl::ascii_toupper(static_cast<unsigned char>(sentence[0]));
  if (absl::string_view(".!?").find(sentence.back()) == absl::string_view::npos) sentence += '.';
  return sentence;
}

// Leaves out the name of a refusal, "[NAME] ", with which a text may begin.
absl::string_view WithoutName(absl::string_view text) {
  const size_t end = text.find("] ");
  return absl::StartsWith(text, "[") && end != absl::string_view::npos ? text.substr(end + 2) : text;
}

// A state that nobody knows is shown as it is.
std::string WordsOnCacheState(const std::string& state) {
  static const auto* const kWords = new absl::flat_hash_map<std::string, std::string>{
      {"unfrozen", "Nothing is frozen, so there is nothing to keep."},
      {"unknown", "It is not known yet whether samples come again."},
      {"trying", "Egeria is trying whether the cache pays."},
      {"on", "The forward pass of frozen modules is skipped where the cache has their output."},
      {"off", "The cache does not pay, so it is not asked."},
      {"refused", "The frozen modules cannot be skipped."},
  };
  const auto words = kWords->find(state);
  return words == kWords->end() ? state : words->second;
}

}  // namespace

std::vector<std::string> WordsOnJob(const JobView& view) {
  const v1::JobSummary& job = view.summary;
  const bool runs = job.phase() == v1::JOB_PHASE_RUNNING, observed = job.mode() == v1::MODE_OBSERVE;
  std::vector<std::string> words;
  if (job.phase() == v1::JOB_PHASE_FINISHED) words.push_back("The training has finished.");
  if (job.phase() == v1::JOB_PHASE_SILENT) {
    words.push_back(
        "No rank is connected. Training may go on without the controller, and what is frozen stays frozen.");
  } else if (runs && job.connected_ranks() < job.world_size()) {
    words.push_back(absl::StrCat(job.world_size() - job.connected_ranks(), " of ", job.world_size(),
                                 " ranks are not connected. Nothing more is frozen or unfrozen until all are."));
  }
  if (!job.blocked().empty() && job.phase() != v1::JOB_PHASE_FINISHED) {
    words.push_back(absl::StrCat("Nothing more can freeze. ", Sentence(WithoutName(job.blocked()))));
  }
  if (!job.advice().empty() && job.phase() != v1::JOB_PHASE_FINISHED) {
    words.push_back(absl::StrCat("Advice: ", Sentence(WithoutName(job.advice()))));
  }
  if (job.paused()) words.push_back("An operator has paused the policy. `egeria resume` lets it decide again.");
  if (observed) words.push_back("The job is only observed. Decisions are shown and change nothing.");
  if (job.bootstrapping()) words.push_back("The loss has not settled yet. Nothing freezes until it has.");
  if (runs && !observed && job.decided_prefix() != job.applied_prefix()) {
    words.push_back(absl::StrCat("The controller has decided to freeze ", job.decided_prefix(),
                                 " modules. The ranks have frozen ", job.applied_prefix(), " so far."));
  }
  std::vector<std::string> refused;
  for (const auto& [name, count] : view.totals.uploads_refused) {
    if (name != "STALE_REQUEST") refused.push_back(absl::StrCat(absl::AsciiStrToLower(name), " ", count, " times"));
  }
  if (!refused.empty()) {
    words.push_back(absl::StrCat("The controller has refused uploads: ", absl::StrJoin(refused, ", "), "."));
  }
  if (words.empty()) {
    words.push_back(job.applied_prefix() + 1 == job.module_count() ? "All modules that can freeze are frozen."
                                                                   : "Nothing is in the way.");
  }
  return words;
}

std::vector<std::string> WordsOnCache(const JobView& view) {
  if (!view.cache) return {"Rank 0 has told of no cache."};
  std::vector<std::string> words = {WordsOnCacheState(view.cache->state())};
  if (!view.cache->reason().empty()) words.push_back(Sentence(view.cache->reason()));
  return words;
}

}  // namespace egeria::controller
