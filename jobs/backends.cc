#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "jobs/backend.h"

namespace egeria::jobs {

absl::StatusOr<const Backend*> FindBackend(const std::string& name) {
  std::vector<std::string> names;
  for (const Backend* backend : {&LocalBackend(), &SlurmBackend(), &KubernetesBackend()}) {
    if (backend->name() == name) return backend;
    names.push_back(backend->name());
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--to ", name, ": there is no such engine; there are ", absl::StrJoin(names, ", ")));
}

}  // namespace egeria::jobs
