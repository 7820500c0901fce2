#ifndef EGERIA_CONTROLLER_JOB_POLICY_INPUTS_H_
#define EGERIA_CONTROLLER_JOB_POLICY_INPUTS_H_

#include "common/policy/policy.h"
#include "egeria/v1/admin.pb.h"
#include "egeria/v1/controller.pb.h"

// These functions convert what a policy is told, between its structs and the wire and journal form.
namespace egeria::controller {

policy::Observation ObservationFromProto(const v1::Observation& proto);
v1::Observation ObservationToProto(const policy::Observation& observation);

// Returns what a policy must know of a job that was registered so.
policy::JobShape ShapeOf(const v1::RegisterJobRequest& registration);
// Returns the same for a job that was exported.
policy::JobShape ShapeOf(const v1::JobHeader& header);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_POLICY_INPUTS_H_
