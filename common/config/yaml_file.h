#ifndef EGERIA_COMMON_CONFIG_YAML_FILE_H_
#define EGERIA_COMMON_CONFIG_YAML_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/values.h"

namespace egeria::config {

// One value of a YAML file, with its nested keys joined by dots.
struct YamlEntry {
  std::string key;
  Words words;
  bool is_list = false;
  int line = 0;  // counted from 1
};

// Reads a file of nested maps whose leaves are scalars or sequences of scalars.
// Errors: NOT_FOUND the file cannot be read; INVALID_ARGUMENT naming the line that is no YAML, has another shape or
// repeats a key.
absl::StatusOr<std::vector<YamlEntry>> ReadYamlFile(const std::string& path);

}  // namespace egeria::config

#endif  // EGERIA_COMMON_CONFIG_YAML_FILE_H_
