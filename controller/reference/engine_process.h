#ifndef EGERIA_CONTROLLER_REFERENCE_ENGINE_PROCESS_H_
#define EGERIA_CONTROLLER_REFERENCE_ENGINE_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/thread/mutex.h"
#include "controller/reference/shared_memory.h"
#include "egeria/engine/v1/engine.pb.h"

namespace egeria::reference {

// The process egeria-reference, in which reference models are evaluated, so that a graph that crashes, never ends or
// takes all memory costs nobody but itself anything. This class starts it, sends it requests, waits for its replies and
// ends it where one takes too long. It believes nothing that the process says beyond the form of a reply.
//
// One thread, the owner, calls everything but what is said to be for any thread. It must outlive the process, since the
// kernel ends that with the thread that has started it.
class EngineProcess {
 public:
  struct Options {
    std::string program;  // the file egeria-reference
    engine::v1::Setup setup;
    absl::Duration deadline;  // processor time that one request may take
    std::shared_ptr<SharedMemory> memory;
    std::function<bool()> stopping;  // whoever waits gives up soon after this turns true
  };
  explicit EngineProcess(Options options) : options_(std::move(options)) {}
  ~EngineProcess() { End(""); }
  EngineProcess(const EngineProcess&) = delete;
  EngineProcess& operator=(const EngineProcess&) = delete;

  // True from Start() until this class has noticed that the process has gone.
  bool running() const { return socket_ >= 0; }

  // Starts the process where none runs any more, and waits until it is ready. Errors: UNAVAILABLE [REFERENCE_LOST] what
  // is in the way; CANCELLED stopping() is true.
  absl::Status Start();

  // How many processes have been started. A new one has nothing that the one before it had.
  int64_t starts() const { return starts_; }

  // Has the request sent by the next Receive(). The process takes requests one after the other.
  void Send(const engine::v1::Request& request);

  // Waits for the reply to the oldest request that has none. After an error the process has gone, with all that it had.
  // Errors:
  //   INTERNAL [REFERENCE_CRASHED] it died of the request;
  //   DEADLINE_EXCEEDED [REFERENCE_TOO_SLOW] the request has taken more than the deadline;
  //   UNAVAILABLE [REFERENCE_LOST] something else has ended it, or it has not run at all for as long as the deadline;
  //   CANCELLED stopping() is true.
  absl::StatusOr<engine::v1::Reply> Receive();

  // Has the process run only where a CPU is otherwise idle, or as others do. Any thread. It does not stay idle for
  // longer than the deadline while a reply is waited for, since other jobs wait, too.
  void SetIdle(bool idle) ABSL_LOCKS_EXCLUDED(mutex_);

  // Any thread. All processes since this object was made: their processor time, and how many ended, by reason: "crash",
  // "deadline" or "lost". And the memory of the one that runs now.
  double CpuSeconds() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::map<std::string, int64_t> Ends() const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t ResidentBytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Clock = std::chrono::steady_clock;

  absl::Status Spawn();
  absl::StatusOr<std::string> Exchange(bool starting);
  absl::Status CheckTime(bool starting);
  absl::Status TransferSome();
  void RestartClock();
  absl::Status Gone();
  // Kills and reaps the process, and counts its end unless `reason` is empty.
  void End(const std::string& reason) ABSL_LOCKS_EXCLUDED(mutex_);
  double CurrentCpuSeconds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  int64_t starts_ = 0;
  int socket_ = -1;
  std::string outgoing_, incoming_;
  int waiting_ = 0;  // requests without a reply

  // These belong to the request that the process works at.
  double cpu_at_start_ = 0, cpu_at_progress_ = 0;
  Clock::time_point progress_, start_, checked_;

  mutable Mutex mutex_;
  pid_t pid_ ABSL_GUARDED_BY(mutex_) = -1;
  clockid_t cpu_clock_ ABSL_GUARDED_BY(mutex_) = 0;
  bool idle_ ABSL_GUARDED_BY(mutex_) = false;
  double cpu_of_ended_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int64_t> ends_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace egeria::reference

#endif  // EGERIA_CONTROLLER_REFERENCE_ENGINE_PROCESS_H_
