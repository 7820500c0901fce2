#ifndef EGERIA_CONTROLLER_JOB_FACT_WRITER_H_
#define EGERIA_CONTROLLER_JOB_FACT_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controller/job/effects.h"
#include "controller/job/job.h"
#include "controller/job/job_manager_options.h"
#include "controller/job/journal.h"
#include "egeria/storage/v1/journal.pb.h"

namespace egeria::controller {

// The one way in which a job changes durably: a fact is judged by the job's state, written to the journal, and only
// then applied. A decision that the policy takes on it is written in the same way at once, or before the next fact
// where the journal failed.
//
// Errors of all that commits: UNAVAILABLE [JOURNAL] nothing is written and nothing has changed, logged and counted;
// INTERNAL an impossible fact, which is a defect of the caller. Thread-compatible; the order of its calls is the order
// of facts.
class FactWriter {
 public:
  // Both must outlive the writer.
  FactWriter(const JobManagerOptions* options, Journal* journal) : options_(options), journal_(journal) {}

  // Applies every fact of the journal to the job that `job_of` returns. Returns the jobs that are damaged.
  // Errors: those of Journal::Replay().
  absl::StatusOr<std::vector<Journal::Damaged>> Replay(const std::function<Job&(const JobId&)>& job_of);

  // A fact of no kind yet, with the time that it is.
  storage::v1::Fact NewFact() const;
  // The fact survives the end of the machine once this returns OK.
  absl::Status Commit(Job& job, const storage::v1::Fact& fact) {
    return Commit(job, std::vector<storage::v1::Fact>{fact}, /*sync=*/true);
  }
  // Makes official what the policy has decided and no fact says yet, and tells the ranks.
  absl::Status CommitPendingDecisions(Job& job, Effects& effects);
  // Shows observations to the policy, in the order of their steps. A job that has its share of them takes no more,
  // which is no error.
  absl::Status CommitObservations(Job& job, const std::vector<v1::Observation>& observations, Effects& effects);
  // Shows the policy something that was measured at `step`, with the learning rate in force.
  absl::Status CommitMeasured(Job& job, int64_t step, v1::Observation observation, Effects& effects);
  // Shows the policy a reading of the frontmost active module.
  absl::Status CommitReading(Job& job, int module, int64_t step, double plasticity, Effects& effects);

  // The bytes of the facts of all jobs; to be told now and then.
  void SetBytesOfAll(int64_t bytes) { bytes_of_all_ = bytes; }

 private:
  bool IsFull(const Job& job, size_t observations) const;
  absl::Status Commit(Job& job, std::vector<storage::v1::Fact> facts, bool sync);

  const JobManagerOptions* const options_;
  Journal* const journal_;
  int64_t bytes_of_all_ = 0;
  int64_t refused_ = 0;  // commits that the journal refused
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_FACT_WRITER_H_
