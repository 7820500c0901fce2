#ifndef EGERIA_COMMON_BASE_LOG_H_
#define EGERIA_COMMON_BASE_LOG_H_

#include <string>

#include "absl/strings/str_cat.h"

// Logging for every program of the project, kept free of the logger's own headers so that files which
// include LibTorch can use it (its fmt would shadow the system's).
namespace egeria {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets the lowest level that is printed and the name that starts each line. Logs go to standard error.
// Thread-safe.
void ConfigureLogging(const std::string& program, LogLevel lowest);

// "debug", "info", "warning" or "error"; false and no change for anything else.
bool ParseLogLevel(const std::string& text, LogLevel* level);

// Thread-safe; never blocks on anything but standard error. A message is one line, whatever is in it; see Printable().
void Log(LogLevel level, const std::string& message);

template <typename... Args>
void LogDebug(const Args&... args) {
  Log(LogLevel::kDebug, absl::StrCat(args...));
}
template <typename... Args>
void LogInfo(const Args&... args) {
  Log(LogLevel::kInfo, absl::StrCat(args...));
}
template <typename... Args>
void LogWarning(const Args&... args) {
  Log(LogLevel::kWarning, absl::StrCat(args...));
}
template <typename... Args>
void LogError(const Args&... args) {
  Log(LogLevel::kError, absl::StrCat(args...));
}

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_LOG_H_
