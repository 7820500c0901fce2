#include "deploy/run/temp_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <initializer_list>

#include "absl/strings/str_cat.h"

namespace egeria::run {

absl::StatusOr<TempFolder> TempFolder::Make() {
  constexpr size_t kMaxPath = 80;  // of the 107 bytes of a socket's path
  std::string reasons;
  for (const char* base : std::initializer_list<const char*>{std::getenv("TMPDIR"), std::getenv("XDG_RUNTIME_DIR"), "/tmp"}) {
    if (base == nullptr || base[0] != '/') continue;
    std::string path = absl::StrCat(base, "/egeria-run-XXXXXX");
    if (path.size() <= kMaxPath && mkdtemp(path.data()) != nullptr) return TempFolder(std::move(path));
    absl::StrAppend(&reasons, " ", base, " (", path.size() > kMaxPath ? "too long" : std::strerror(errno), ")");
  }
  return absl::UnavailableError(absl::StrCat("no temporary folder can be made in", reasons));
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace egeria::run
