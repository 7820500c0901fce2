#include "jobs/program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace egeria::jobs {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

absl::Status CannotStart(const std::string& program, int error) {
  return absl::NotFoundError(
      absl::StrCat("cannot start ", program, ": ", std::strerror(error), "; install it, or put its folder into PATH"));
}

}  // namespace

absl::StatusOr<std::string> OutputOf(const std::vector<std::string>& command) {
  char errors[] = "/tmp/egeria-errors-XXXXXX";
  const int error_file = mkostemp(errors, O_CLOEXEC);
  int output[2];
  if (error_file < 0 || pipe2(output, O_CLOEXEC) != 0) return CannotStart(command[0], errno);
  unlink(errors);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output[1], 1);
  posix_spawn_file_actions_adddup2(&actions, error_file, 2);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, command[0].c_str(), &actions, nullptr, Pointers(command).data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(output[1]);
  std::string said;
  char bytes[4096];
  for (ssize_t got; failed == 0 && (got = read(output[0], bytes, sizeof(bytes))) > 0;) {
    said.append(bytes, static_cast<size_t>(got));
  }
  close(output[0]);
  int status = 0;
  if (failed == 0) waitpid(pid, &status, 0);
  std::string complaint;
  for (off_t at = 0; const ssize_t got = pread(error_file, bytes, sizeof(bytes), at); at += got) {
    if (got < 0) break;
    complaint.append(bytes, static_cast<size_t>(got));
  }
  close(error_file);
  if (failed != 0) return CannotStart(command[0], failed);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return said;
  return absl::InternalError(
      absl::StrCat(command[0], " failed: ", std::string(absl::StripAsciiWhitespace(complaint + said))));
}

absl::Status Become(const std::vector<std::string>& command) {
  execvp(command[0].c_str(), Pointers(command).data());
  return CannotStart(command[0], errno);
}

absl::StatusOr<pid_t> StartDetached(const std::vector<std::string>& command, const std::string& log) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, command[0].c_str(), &actions, &attributes, Pointers(command).data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return CannotStart(command[0], failed);
  return pid;
}

unsigned long long StartTimeOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t name_end = text.rfind(')');  // the name before it may hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(text.substr(name_end + 1));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return 0;
  for (int i = 0; i < 18; ++i) fields >> field;  // proc(5): the 22nd field is the start time
  unsigned long long ticks = 0;
  fields >> ticks;
  return ticks;
}

}  // namespace egeria::jobs
