#include "controller/job/job_phase.h"

namespace egeria::controller {

const char* PhaseName(v1::JobPhase phase) {
  switch (phase) {
    case v1::JOB_PHASE_RUNNING: return "running";
    case v1::JOB_PHASE_FINISHED: return "finished";
    default: return "silent";
  }
}

}  // namespace egeria::controller
