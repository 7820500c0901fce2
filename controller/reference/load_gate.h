#ifndef EGERIA_CONTROLLER_REFERENCE_LOAD_GATE_H_
#define EGERIA_CONTROLLER_REFERENCE_LOAD_GATE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace egeria::reference {

// CPU time of the whole machine since it started, in clock ticks.
struct CpuTimes {
  int64_t busy = 0;
  int64_t total = 0;
};

// The first line of /proc/stat. Waiting for disks counts as idle; a guest's time is part of user time
// already.
std::optional<CpuTimes> ParseProcStat(absl::string_view text);

// The share of the machine's CPU time, 0..1, that processes other than this one and the engine's used since the
// previous call. The evaluator's own use is left out, since it would close its own gate. The first call, and one within
// a tenth of a second of the last, give the last known value; 0 where /proc/stat cannot be read. Thread-compatible.
class CpuLoadMeter {
 public:
  // `engine_seconds` tells the processor time that the engine's processes have taken so far.
  explicit CpuLoadMeter(std::string path = "/proc/stat", std::function<double()> engine_seconds = nullptr);
  double Read();

 private:
  double OwnSeconds() const;

  const std::string path_;
  const std::function<double()> engine_seconds_;
  CpuTimes last_;
  double last_own_seconds_ = 0;
  double load_ = 0;
};

}  // namespace egeria::reference

#endif  // EGERIA_CONTROLLER_REFERENCE_LOAD_GATE_H_
