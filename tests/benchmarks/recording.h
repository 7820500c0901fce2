#ifndef EGERIA_TESTS_BENCHMARKS_RECORDING_H_
#define EGERIA_TESTS_BENCHMARKS_RECORDING_H_

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace egeria::testing {

// A record of what a native benchmark has measured, from which `egeria bench report` makes a table of measurements.md.
// Not thread-safe. recording.py is the same for programs in Python.
class Recording {
 public:
  // `program` is the benchmark's path from the root of the repository, `subject` the heading of the first column.
  explicit Recording(std::string program, std::string subject = "what")
      : program_(std::move(program)), subject_(std::move(subject)) {}

  // Adds a cell: the median of the rounds' values, with the least and the most where there are several.
  void Add(const std::string& what, std::vector<double> values, const std::string& unit,
           const std::string& column = "measured") {
    std::sort(values.begin(), values.end());
    nlohmann::ordered_json cell = {
        {"median", values[values.size() / 2]}, {"least", nullptr}, {"most", nullptr}, {"unit", unit}};
    if (values.size() > 1) cell["least"] = values.front(), cell["most"] = values.back();
    for (auto& row : rows_) {
      if (row["what"] == what) {
        row["values"][column] = cell;
        return;
      }
    }
    rows_.push_back({{"what", what}, {"values", {{column, cell}}}});
  }

  // Writes the record, or nothing for an empty `file`.
  void Write(const std::string& file, int rounds) const {
    if (file.empty()) return;
    const nlohmann::ordered_json record = {{"program", program_}, {"arguments", ""},     {"machine", Machine()},
                                           {"rounds", rounds},    {"subject", subject_}, {"rows", rows_}};
    std::ofstream(file) << record.dump(1) << "\n";
  }

 private:
  static std::string Machine() {
    std::ifstream processors("/proc/cpuinfo");
    std::string line;
    while (std::getline(processors, line) && line.rfind("model name", 0) != 0) continue;
    const std::string name = line.substr(std::min(line.size(), line.find(':') + 2));
    return std::to_string(std::thread::hardware_concurrency()) + " cores (" + name + ")";
  }

  const std::string program_;
  const std::string subject_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_BENCHMARKS_RECORDING_H_
