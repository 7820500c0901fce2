#ifndef EGERIA_CONTROLLER_JOB_JOB_TABLE_H_
#define EGERIA_CONTROLLER_JOB_JOB_TABLE_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controller/job/effects.h"
#include "controller/job/job.h"
#include "controller/job/job_manager_options.h"

namespace egeria::controller {

// The error of a call for a session that is over: ABORTED.
absl::Status SessionIsOver();

// The jobs of a controller by id, and their ranks' streams by session: finds them, and says which jobs have had their
// time. Thread-compatible.
class JobTable {
 public:
  // The rank whose stream a session is, and its job.
  struct Seat {
    Job* job;
    Rank* rank;
    int number;  // the rank's

    bool samples() const { return number == job->live.ranks.Sampler(); }
  };

  // Jobs that are not needed any more.
  struct Leftovers {
    std::vector<JobId> expired;  // to be forgotten
    std::vector<Job*> idle;      // without a stream for so long that their reference models can go
  };

  // `options` must outlive the table.
  explicit JobTable(const JobManagerOptions* options) : options_(options) {}

  const std::map<JobId, std::unique_ptr<Job>>& jobs() const { return jobs_; }
  // Null for an unknown job.
  Job* Find(const JobId& id) const;
  // Errors: NOT_FOUND [UNKNOWN_JOB].
  absl::StatusOr<Job*> Get(const JobId& id) const;
  // Says whether a further job of `owner` may begin; nobody has more than three quarters of the places. `makes_room`
  // gets the job that is to go for it, if one has to: the oldest one that has registered and never begun, of the same
  // owner where it is he who has too many. Errors: RESOURCE_EXHAUSTED [TOO_MANY_JOBS].
  absl::Status CheckRoom(const std::string& owner, std::optional<JobId>* makes_room) const;
  Job& Add(std::unique_ptr<Job> job);
  // Ends the sessions of all ranks of a job with `status`, and forgets the ranks. No rank is forgotten otherwise.
  void DismissRanks(Job& job, const absl::Status& status, Effects& effects);
  // Removes a job; its sessions end with `status`.
  void Drop(JobId id, const absl::Status& status, Effects& effects);
  Leftovers FindLeftovers(absl::Time now) const;

  // Empty where the session is over.
  std::optional<Seat> Find(SessionId session) const;
  // Gives the rank, which is one of the job's, a session of its own instead of the one that it may have.
  SessionId BeginSession(Job& job, int number, Rank& rank);
  // Ends the rank's session, without telling its listener.
  void EndSession(const Seat& seat);

 private:
  // Whether a job has registered, and nothing has come of it so far.
  static bool HasDoneNothing(const Job& job);

  const JobManagerOptions* const options_;
  std::map<JobId, std::unique_ptr<Job>> jobs_;
  std::map<SessionId, Seat> sessions_;
  SessionId last_session_;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_TABLE_H_
