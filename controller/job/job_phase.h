#ifndef EGERIA_CONTROLLER_JOB_JOB_PHASE_H_
#define EGERIA_CONTROLLER_JOB_JOB_PHASE_H_

#include "egeria/v1/admin.pb.h"

namespace egeria::controller {

// "running", "silent" or "finished", in metrics and on the command line.
inline const char* PhaseName(v1::JobPhase phase) {
  switch (phase) {
    case v1::JOB_PHASE_RUNNING: return "running";
    case v1::JOB_PHASE_FINISHED: return "finished";
    default: return "silent";
  }
}

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_PHASE_H_
