#include "worker/trainer/summary.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace egeria::trainer {

std::string Describe(const RunSummary& summary) {
  std::string text = absl::StrFormat(
      "accuracy %.4f, validation loss %.4f, %.1f s, frozen share %.3f, %d switches, ranks identical: %s",
      summary.accuracy, summary.validation_loss, summary.seconds, summary.frozen_share, summary.decisions.size(),
      summary.ranks_identical ? "yes" : "NO");
  if (summary.mode == "plain" || !summary.time_saved_share.has_value()) return text;
  const double took = summary.account.total_spent_seconds();
  if (summary.decisions.empty()) {
    absl::StrAppendFormat(&text, ", Egeria took %.2f s, nothing froze", took);
  } else {
    absl::StrAppendFormat(&text, ", saved about %.2f s, Egeria took %.2f s", summary.account.saved_seconds.value_or(0),
                          took);
    const double net = *summary.time_saved_share;
    if (net > 0) absl::StrAppendFormat(&text, " (%.0f %% of the time)", 100 * net);
  }
  return text;
}

std::string ToJson(const RunSummary& summary) {
  using Json = nlohmann::ordered_json;
  Json decisions = Json::array();
  for (const RunSummary::Decision& decision : summary.decisions) {
    decisions.push_back({{"step", decision.step},
                         {"action", decision.action},
                         {"frozen_prefix", decision.frozen_prefix},
                         {"ranks_identical", decision.ranks_identical}});
  }
  const worker::CacheTotals& totals = summary.cache;
  const Json cache = {{"state", totals.state},
                      {"reason", totals.reason},
                      {"passes", totals.passes},
                      {"passes_skipped", totals.passes_skipped},
                      {"hits", totals.hits},
                      {"misses", totals.misses},
                      {"proofs", totals.proofs},
                      {"audits", totals.audits},
                      {"saved_seconds", totals.saved_seconds},
                      {"forward_seconds", totals.forward_seconds},
                      {"fetch_seconds", totals.fetch_seconds}};
  const auto or_null = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  const Json run = {{"task", summary.task},
                    {"policy", summary.policy},
                    {"mode", summary.mode},
                    {"ranks", summary.ranks},
                    {"seconds", summary.seconds},
                    {"wall_seconds", summary.wall_seconds},
                    {"accuracy", summary.accuracy},
                    {"validation_loss", summary.validation_loss},
                    {"frozen_share", summary.frozen_share},
                    {"frozen_share_by_time", summary.frozen_share_by_time},
                    {"decisions", decisions},
                    {"ranks_identical", summary.ranks_identical},
                    {"steps", summary.steps},
                    {"epochs", summary.epochs},
                    {"seed", summary.seed},
                    {"modules", summary.modules},
                    {"parameters_hash", summary.parameters_hash},
                    {"bytes_all_reduced", summary.bytes_all_reduced},
                    {"samples_sent", summary.samples_sent},
                    {"samples_dropped", summary.samples_dropped},
                    {"saved_seconds", or_null(summary.account.saved_seconds)},
                    {"spent_seconds", summary.account.spent_seconds},
                    {"time_saved_share", or_null(summary.time_saved_share)},
                    {"cache", cache}};
  return Json{{"runs", Json::array({run})}}.dump(2) + "\n";
}

absl::Status WriteAtomically(const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrCat(path, ".", ::getpid(), ".tmp");
  auto failed = [&](const char* what) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return NamedError(absl::StatusCode::kUnavailable, "CANNOT_WRITE", path, ": ", what, ": ", std::strerror(error));
  };
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return failed("cannot create a file beside it");
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(file, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      ::close(file);
      return failed("write");
    }
    written += static_cast<size_t>(count);
  }
  const bool synced = ::fsync(file) == 0;
  if (::close(file) != 0 || !synced) return failed("sync");
  if (std::rename(temporary.c_str(), path.c_str()) != 0) return failed("rename");
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PlannedSwitch>> ReadPlans(const std::string& path) {
  std::ifstream in(path);
  if (!in) return NamedError(absl::StatusCode::kNotFound, "NO_PLANS", "cannot read ", path);
  auto bad = [&path](const char* what) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_PLANS", path, ": ", what,
                      "; expected [{\"step\": 100, \"frozen_prefix\": 1}, ...] or a summary");
  };
  const nlohmann::json json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json* list = &json;
  if (json.is_object()) {
    const auto runs = json.find("runs");
    if (runs == json.end() || !runs->is_array() || runs->empty() || !(*runs)[0].is_object() ||
        !(*runs)[0].contains("decisions")) {
      return bad("no run with decisions");
    }
    list = &(*runs)[0]["decisions"];
  }
  if (!list->is_array()) return bad("not a list");
  std::vector<PlannedSwitch> plans;
  for (const nlohmann::json& entry : *list) {
    if (!entry.is_object() || !entry.contains("step") || !entry.contains("frozen_prefix") ||
        !entry["step"].is_number_integer() || !entry["frozen_prefix"].is_number_integer()) {
      return bad("an entry without an integer step and frozen_prefix");
    }
    plans.push_back({entry["step"].get<int64_t>(), entry["frozen_prefix"].get<int>()});
  }
  return plans;
}

}  // namespace egeria::trainer
