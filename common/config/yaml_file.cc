#include "common/config/yaml_file.h"

#include <fstream>
#include <set>
#include <sstream>

#include "common/base/status.h"
#include "yaml-cpp/yaml.h"

namespace egeria::config {
namespace {

absl::Status Wrong(const std::string& path, int line, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ":", line, ": ", what));
}

absl::Status Flatten(const std::string& path, const std::string& prefix, const YAML::Node& node,
                     std::vector<YamlEntry>* entries) {
  std::set<std::string> seen;
  for (const auto& item : node) {
    const int line = item.first.Mark().line + 1;
    if (!item.first.IsScalar()) return Wrong(path, line, "a key is to be a word");
    YamlEntry entry;
    entry.key = prefix + item.first.Scalar();
    entry.line = line;
    if (!seen.insert(entry.key).second) return Wrong(path, line, absl::StrCat("'", entry.key, "' is said twice"));
    const YAML::Node& value = item.second;
    if (value.IsMap()) {
      EGERIA_RETURN_IF_ERROR(Flatten(path, entry.key + ".", value, entries));
      continue;
    }
    if (value.IsSequence()) {
      entry.is_list = true;
      for (const YAML::Node& element : value) {
        if (!element.IsScalar()) {
          return Wrong(path, line, absl::StrCat("'", entry.key, "' is a list of more than words"));
        }
        entry.words.push_back(element.Scalar());
      }
    } else if (value.IsScalar()) {
      entry.words.push_back(value.Scalar());
    } else {
      return Wrong(path, line, absl::StrCat("'", entry.key, "' has no value"));
    }
    entries->push_back(std::move(entry));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<YamlEntry>> ReadYamlFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::vector<YamlEntry> entries;
  try {
    const YAML::Node root = YAML::Load(text.str());
    if (root.IsNull()) return entries;
    if (!root.IsMap()) return Wrong(path, 1, "the file is to be a map of options");
    EGERIA_RETURN_IF_ERROR(Flatten(path, "", root, &entries));
  } catch (const YAML::Exception& error) {
    return Wrong(path, error.mark.line + 1, error.msg);
  }
  return entries;
}

}  // namespace egeria::config
