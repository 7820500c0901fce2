#include "controller/reference/load_gate.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

namespace egeria::reference {
namespace {

std::optional<CpuTimes> ReadCpuTimes(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return ParseProcStat(line);
}

}  // namespace

std::optional<CpuTimes> ParseProcStat(absl::string_view text) {
  std::istringstream line(std::string(text.substr(0, text.find('\n'))));
  std::string name;
  line >> name;
  if (name != "cpu") return std::nullopt;
  // user nice system idle iowait irq softirq steal
  int64_t fields[8] = {};
  int count = 0;
  while (count < 8 && line >> fields[count]) ++count;
  if (count < 4) return std::nullopt;
  CpuTimes times;
  for (int64_t field : fields) times.total += field;
  times.busy = times.total - fields[3] - fields[4];
  return times;
}

CpuLoadMeter::CpuLoadMeter(std::string path, std::function<double()> engine_seconds)
    : path_(std::move(path)), engine_seconds_(std::move(engine_seconds)) {
  last_ = ReadCpuTimes(path_).value_or(CpuTimes{});
  last_own_seconds_ = OwnSeconds();
}

double CpuLoadMeter::OwnSeconds() const {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  const double own = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  return own + (engine_seconds_ == nullptr ? 0 : engine_seconds_());
}

double CpuLoadMeter::Read() {
  const std::optional<CpuTimes> now = ReadCpuTimes(path_);
  if (!now.has_value()) return load_;
  const double ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  const double total = static_cast<double>(now->total - last_.total) / ticks_per_second;
  const long cpus = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
  if (total < 0.1 * static_cast<double>(cpus)) return load_;
  const double busy = static_cast<double>(now->busy - last_.busy) / ticks_per_second;
  const double own = OwnSeconds();
  load_ = std::clamp((busy - (own - last_own_seconds_)) / total, 0.0, 1.0);
  last_ = *now;
  last_own_seconds_ = own;
  return load_;
}

}  // namespace egeria::reference
