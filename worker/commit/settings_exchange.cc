#include "worker/commit/settings_exchange.h"

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/host_name.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "worker/commit/torch_status.h"

namespace egeria::worker {
namespace {

constexpr std::chrono::milliseconds kPollInterval{20};
constexpr size_t kMaxShown = 200;  // characters of a value in a message
constexpr const char* kComplete = "complete";

std::vector<uint8_t> BytesOf(const std::string& text) { return {text.begin(), text.end()}; }
std::string TextOf(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

absl::Status NoStore(const std::exception& error) {
  return NamedError(absl::StatusCode::kUnavailable, "NO_STORE",
                    "the ranks cannot tell each other their settings: ", MessageOf(error));
}

RankSettings Parse(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {json.at("host"), json.at("values")};
}

}  // namespace

std::string NodeName() {
  if (const char* const name = std::getenv("EGERIA_NODE"); name != nullptr && *name != '\0') return name;
  return HostName();
}

SettingsExchange::SettingsExchange(GroupMember member, std::string name)
    : member_(std::move(member)), name_(std::move(name)) {}

std::string SettingsExchange::KeyOf(int rank) const { return absl::StrCat(name_, "/", rank); }

absl::Status SettingsExchange::Post(const RankSettings& mine) {
  // Bytes that are no text must not end the training.
  const nlohmann::json json = {{"host", mine.host}, {"values", mine.values}};
  try {
    member_.store->set(KeyOf(member_.rank),
                       BytesOf(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  } catch (const std::exception& error) {
    return NoStore(error);
  }
  return absl::OkStatus();
}

// Says which of the ranks have not posted by now, kComplete where all have. The first rank that asks decides for all.
std::string SettingsExchange::VerdictOn(const std::vector<int>& ranks) {
  std::vector<int> missing;
  for (const int rank : ranks) {
    if (!member_.store->check({KeyOf(rank)})) missing.push_back(rank);
  }
  const std::string own = missing.empty() ? kComplete : absl::StrJoin(missing, ", ");
  const std::string key = absl::StrCat(name_, "/verdict/", absl::StrJoin(ranks, ","));
  return TextOf(member_.store->compareSet(key, {}, BytesOf(own)));
}

// Waits until the store has the keys or patience ends. Errors: CANCELLED [INTERRUPTED].
absl::Status SettingsExchange::WaitFor(const std::vector<std::string>& keys, const WaitLimits& limits) {
  const auto start = std::chrono::steady_clock::now();
  while (!member_.store->check(keys) && std::chrono::steady_clock::now() - start < limits.patience) {
    if (limits.interrupted && limits.interrupted()) {
      return NamedError(absl::StatusCode::kCancelled, "INTERRUPTED", "interrupted while waiting for other ranks");
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RankSettings>> SettingsExchange::Finish(const std::vector<int>& ranks,
                                                                   const WaitLimits& limits) {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(KeyOf(rank));
  try {
    EGERIA_RETURN_IF_ERROR(WaitFor(keys, limits));
    if (const std::string missing = VerdictOn(ranks); missing != kComplete) {
      return NamedError(absl::StatusCode::kUnavailable, "RANK_MISSING", "rank ", missing,
                        " has not come to the exchange of settings");
    }
    std::vector<RankSettings> settings;
    for (const std::string& key : keys) settings.push_back(Parse(TextOf(member_.store->get(key))));
    return settings;
  } catch (const std::exception& error) {
    return NoStore(error);
  }
}

std::string ToString(const SettingDifference& difference) {
  const auto shown = [](const std::string& value) {
    if (value.empty()) return std::string("nothing");
    return value.size() <= kMaxShown ? value : absl::StrCat(value.substr(0, kMaxShown), "...");
  };
  return absl::StrCat(difference.setting, ": rank ", difference.rank, " (", difference.host, ") has ",
                      shown(difference.value), ", and rank ", difference.first_rank, " has ",
                      shown(difference.value_of_first));
}

std::string AgreedAddress(const std::vector<RankSettings>& settings, size_t index) {
  const RankSettings& own = settings[index];
  const RankSettings& decides = own.host == settings.front().host ? settings.front() : own;
  const auto found = decides.values.find(kControllerAddress);
  return found == decides.values.end() ? "" : found->second;
}

std::vector<SettingDifference> DifferencesFromFirst(const std::vector<RankSettings>& settings,
                                                    const std::vector<int>& ranks) {
  std::set<std::string> names;
  for (const RankSettings& rank : settings) {
    for (const auto& [name, value] : rank.values) names.insert(name);
  }
  const auto value_of = [](const RankSettings& rank, const std::string& name) {
    const auto found = rank.values.find(name);
    return found == rank.values.end() ? std::string() : found->second;
  };
  std::vector<SettingDifference> differences;
  for (const std::string& name : names) {
    const std::string first = value_of(settings.front(), name);
    for (size_t i = 1; i < settings.size(); ++i) {
      const std::string value = value_of(settings[i], name);
      if (value != first) differences.push_back({name, ranks[i], settings[i].host, value, ranks.front(), first});
    }
  }
  return differences;
}

}  // namespace egeria::worker
