#ifndef EGERIA_COMMON_POLICY_POLICY_PROTO_H_
#define EGERIA_COMMON_POLICY_POLICY_PROTO_H_

#include "common/policy/policy_config.h"
#include "egeria/v1/controller.pb.h"

// These functions convert a policy's configuration between its struct and its wire and journal form.
namespace egeria::policy {

// Constants that are absent take the struct's defaults; no policy at all is the plasticity policy. Values are not
// checked: Resolve() does that.
PolicyConfig FromProto(const v1::PolicyConfig& proto);
v1::PolicyConfig ToProto(const PolicyConfig& config);

}  // namespace egeria::policy

#endif  // EGERIA_COMMON_POLICY_POLICY_PROTO_H_
