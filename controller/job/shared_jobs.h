#ifndef EGERIA_CONTROLLER_JOB_SHARED_JOBS_H_
#define EGERIA_CONTROLLER_JOB_SHARED_JOBS_H_

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/thread/mutex.h"
#include "controller/job/fact_writer.h"
#include "controller/job/job_manager_options.h"
#include "controller/job/job_table.h"
#include "controller/job/journal.h"
#include "controller/reference/evaluator.h"

namespace egeria::controller {

// All parts of a JobManager share the jobs, which outlive them, and the one lock over them. The lock is never held over
// a call to a listener or to the evaluator: a part declares its Effects first and then takes the lock. It is held over
// writes to the journal, since they define the order of facts.
struct SharedJobs {
  SharedJobs(JobManagerOptions given_options, std::unique_ptr<Journal> given_journal)
      : journal(std::move(given_journal)), options(WithClock(std::move(given_options), journal.get())) {}

  static JobManagerOptions WithClock(JobManagerOptions given, const Journal* clock) {
    if (given.clock == nullptr) given.clock = [clock] { return clock->Now(); };
    return given;
  }

  const std::unique_ptr<Journal> journal ABSL_PT_GUARDED_BY(mutex);
  const JobManagerOptions options;
  std::unique_ptr<reference::Evaluator> evaluator;  // constant once started; synchronises itself

  mutable Mutex mutex;
  JobTable table ABSL_GUARDED_BY(mutex){&options};
  FactWriter facts ABSL_GUARDED_BY(mutex){&options, journal.get()};
  bool stopped ABSL_GUARDED_BY(mutex) = false;
};

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_SHARED_JOBS_H_
