#include "common/metrics/family.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>

namespace egeria::metrics {

Family::Family(std::string name, std::string help, prometheus::MetricType type) {
  family_.name = std::move(name);
  family_.help = std::move(help);
  family_.type = type;
}

Family Family::Counter(std::string name, std::string help) {
  return Family(std::move(name), std::move(help), prometheus::MetricType::Counter);
}

Family Family::Gauge(std::string name, std::string help) {
  return Family(std::move(name), std::move(help), prometheus::MetricType::Gauge);
}

void Family::Add(const Labels& labels, double value) {
  prometheus::ClientMetric& metric = family_.metric.emplace_back();
  for (const auto& [name, text] : labels) metric.label.push_back({name, text});
  if (family_.type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
}

void Family::MoveTo(std::vector<prometheus::MetricFamily>* families) && {
  if (!family_.metric.empty()) families->push_back(std::move(family_));
}

namespace {

// When this process started, in seconds since the Unix epoch; the kernel tells it in ticks since its own start.
double ProcessStart() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), std::istreambuf_iterator<char>());
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));  // the name may hold blanks
  std::string field;
  for (int number = 3; number <= 21; ++number) fields >> field;
  double ticks = 0, uptime = 0;
  fields >> ticks;
  std::ifstream("/proc/uptime") >> uptime;
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return now - uptime + ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

std::vector<prometheus::MetricFamily> ProcessMetrics() {
  static const double start = ProcessStart();
  std::vector<prometheus::MetricFamily> families;
  auto add = [&families](Family family, double value) {
    family.Add({}, value);
    std::move(family).MoveTo(&families);
  };
  long total_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  add(Family::Gauge("process_resident_memory_bytes", "Resident memory size in bytes."),
      static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  add(Family::Counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds."),
      seconds(usage.ru_utime) + seconds(usage.ru_stime));
  add(Family::Gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds."), start);
  return families;
}

}  // namespace egeria::metrics
