#ifndef EGERIA_WORKER_COMMIT_SETTINGS_EXCHANGE_H_
#define EGERIA_WORKER_COMMIT_SETTINGS_EXCHANGE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/commit/process_group.h"
#include "worker/commit/wait.h"

namespace egeria::worker {

// The settings that a user gave to one rank: each one's name and value, as texts.
struct RankSettings {
  std::string host;
  std::map<std::string, std::string> values;
};

// This process's node: EGERIA_NODE, which egeria-run sets, or else the host's name.
std::string NodeName();

// One setting in which a rank is not as the first one. A rank that lacks the setting has the value "".
struct SettingDifference {
  std::string setting;
  int rank = 0;
  std::string host;
  std::string value;
  int first_rank = 0;
  std::string value_of_first;
};

// A SettingsExchange tells the settings of every rank to all ranks, before any of them calls a collective: a rank that
// does not take part keeps the others waiting for a limited time only, and not for ever as in a collective. It goes
// through the store by which the ranks have found each other.
//
// Thread-compatible. One exchange of a job has one name, the same on all ranks.
class SettingsExchange {
 public:
  // `member` is this rank among all ranks of the store.
  SettingsExchange(GroupMember member, std::string name);
  int rank() const { return member_.rank; }

  // Tells this rank's settings. It does not wait for other ranks. Errors: UNAVAILABLE [NO_STORE].
  absl::Status Post(const RankSettings& mine);

  // Returns the settings of `ranks`, in this order, and waits until all of them have posted. All of `ranks` get the
  // same answer: where one has lost patience, one that comes later learns it.
  // Errors: UNAVAILABLE [RANK_MISSING] which ranks have not posted; [NO_STORE]; CANCELLED [INTERRUPTED].
  absl::StatusOr<std::vector<RankSettings>> Finish(const std::vector<int>& ranks, const WaitLimits& limits);

 private:
  std::string KeyOf(int rank) const;
  absl::Status WaitFor(const std::vector<std::string>& keys, const WaitLimits& limits);
  std::string VerdictOn(const std::vector<int>& ranks);

  const GroupMember member_;
  const std::string name_;
};

// A sentence without its full stop: "--seed: rank 1 (host-b) has 2, and rank 0 has 1".
std::string ToString(const SettingDifference& difference);

// A setting that holds a controller's address. Nodes may reach one controller in different ways, and the ranks of one
// node may not.
constexpr const char* kControllerAddress = "controller address";

// The address that the rank at `index` is to use: the first rank's, if it is on the same node, else its own.
std::string AgreedAddress(const std::vector<RankSettings>& settings, size_t index);

// Every setting in which a rank is not as the first one; `ranks` are the ranks' numbers.
std::vector<SettingDifference> DifferencesFromFirst(const std::vector<RankSettings>& settings,
                                                    const std::vector<int>& ranks);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_COMMIT_SETTINGS_EXCHANGE_H_
