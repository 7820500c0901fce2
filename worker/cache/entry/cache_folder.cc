#include "worker/cache/entry/cache_folder.h"

#include "absl/strings/str_cat.h"
#include "common/base/private_folder.h"
#include "common/base/status.h"

namespace egeria::cache {
namespace {

std::string Variable(const std::map<std::string, std::string>& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? "" : found->second;
}

}  // namespace

std::string DefaultFolder(const std::map<std::string, std::string>& environment, bool root) {
  if (const std::string given = Variable(environment, "EGERIA_CACHE_FOLDER"); !given.empty()) return given;
  if (root) return "/var/cache/egeria";
  if (const std::string cache = Variable(environment, "XDG_CACHE_HOME"); !cache.empty()) return cache + "/egeria";
  return Variable(environment, "HOME") + "/.cache/egeria";
}

std::string DefaultAddress(const std::string& folder) { return absl::StrCat("unix:", folder, "/cache.sock"); }

std::string UsersFile(const std::string& folder) { return folder + "/users"; }

absl::Status MakeFolder(const std::string& folder) {
  const absl::Status made = MakePrivateFolder(folder);
  return made.ok() ? made : UnusableFolder(folder, std::string(made.message()));
}

absl::Status UnusableFolder(const std::string& folder, const std::string& why) {
  return NamedError(absl::StatusCode::kUnavailable, "STORE", "the cache cannot use its folder ", folder, ": ", why);
}

}  // namespace egeria::cache
