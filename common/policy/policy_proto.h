#ifndef EGERIA_COMMON_POLICY_POLICY_PROTO_H_
#define EGERIA_COMMON_POLICY_POLICY_PROTO_H_

#include "common/policy/policy.h"
#include "common/policy/policy_config.h"
#include "egeria/v1/admin.pb.h"
#include "egeria/v1/controller.pb.h"

// These functions convert between the policies' structs and their wire and journal form.
namespace egeria::policy {

// Constants that are absent take the struct's defaults; no policy at all is the plasticity policy. Values
// are not checked: policy::Resolve() does that.
policy::PolicyConfig FromProto(const v1::PolicyConfig& proto);
v1::PolicyConfig ToProto(const policy::PolicyConfig& config);

policy::Observation FromProto(const v1::Observation& proto);
v1::Observation ToProto(const policy::Observation& observation);

// Returns what a policy must know of a job that was registered so.
policy::JobShape ShapeOf(const v1::RegisterJobRequest& registration);
// Returns the same for a job that was exported.
policy::JobShape ShapeOf(const v1::JobHeader& header);

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_POLICY_PROTO_H_
