#ifndef EGERIA_CONTROLLER_JOB_JOB_PHASE_H_
#define EGERIA_CONTROLLER_JOB_JOB_PHASE_H_

#include "egeria/v1/admin.pb.h"

namespace egeria::controller {

// "running", "silent" or "finished", in metrics and on the command line.
const char* PhaseName(v1::JobPhase phase);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_JOB_PHASE_H_
