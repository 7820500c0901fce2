#include "worker/agent/registration.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/host_name.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/graph/graph_proto.h"
#include "common/rpc/channel.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/json_util.h"

namespace egeria::worker {
namespace {

constexpr size_t kMinModules = 2;
constexpr size_t kMaxModules = 512;
constexpr size_t kMaxName = 256;
constexpr size_t kMaxRates = 1024;
// A registration holds at most so much besides graphs.
constexpr size_t kMaxRegistration = rpc::kMaxRequestBytes - (size_t{4} << 20);

// The text is like "plasticity (interval_steps, window, ...), schedule (entries), none ()".
std::string KnownPolicies() {
  std::vector<std::string> policies;
  const google::protobuf::Descriptor& config = *v1::PolicyConfig::descriptor();
  for (int i = 0; i < config.field_count(); ++i) {
    std::vector<std::string> constants;
    const google::protobuf::Descriptor& policy = *config.field(i)->message_type();
    for (int j = 0; j < policy.field_count(); ++j) constants.push_back(policy.field(j)->name());
    policies.push_back(absl::StrCat(config.field(i)->name(), " (", absl::StrJoin(constants, ", "), ")"));
  }
  return absl::StrJoin(policies, ", ");
}

template <typename... Args>
absl::Status Bad(const Args&... message) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_REGISTRATION", message...);
}

absl::Status CheckModules(const std::vector<ModuleDescription>& modules) {
  if (modules.size() < kMinModules || modules.size() > kMaxModules) {
    return Bad("a job has ", kMinModules, " to ", kMaxModules, " layer modules, not ", modules.size());
  }
  std::set<std::string> names;
  for (const ModuleDescription& module : modules) {
    if (module.name.empty() || module.name.size() > kMaxName) {
      return Bad("the name of a layer module has 1 to ", kMaxName, " bytes, not ", module.name.size());
    }
    if (!names.insert(module.name).second) return Bad("two layer modules are named '", module.name, "'");
    if (module.parameter_count < 0 || module.parameter_bytes < 0) {
      return Bad("layer module '", module.name, "' has a negative size");
    }
    if (!(module.step_share >= 0 && module.step_share <= 1)) {
      return Bad("layer module '", module.name, "' has ", module.step_share, " of a step's time");
    }
    if (module.local_reference && module.graph.has_value()) {
      return Bad("layer module '", module.name, "' has a local reference and a graph");
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const JobDescription& job) {
  if (!job.job_id.IsValid()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_JOB_ID", "'", job.job_id.text(),
                      "' is not a UUID in lower case");
  }
  if (job.generation.value() < 0) return Bad("the generation is ", job.generation.value());
  if (job.world_size < 1) return Bad("the world size is ", job.world_size);
  if (job.rank < 0 || job.rank >= job.world_size) return Bad("rank ", job.rank, " of ", job.world_size);
  if (job.training_job.size() > kMaxName) return Bad("the training job's name is longer than ", kMaxName, " bytes");
  if (job.total_steps < 0 || job.step < 0) return Bad("a number of steps is negative");
  if (job.applied_plan.value() < 0) return Bad("the applied plan is ", job.applied_plan.value());
  if (job.planned_learning_rates.size() > kMaxRates) {
    return Bad("at most ", kMaxRates, " planned learning rates are told, not ", job.planned_learning_rates.size());
  }
  for (const double rate : job.planned_learning_rates) {
    if (!std::isfinite(rate) || rate < 0) return Bad("a planned learning rate is ", rate);
  }
  EGERIA_RETURN_IF_ERROR(CheckModules(job.modules));
  if (job.frozen_prefix < 0 || static_cast<size_t>(job.frozen_prefix) >= job.modules.size()) {
    return Bad("the frozen prefix is ", job.frozen_prefix, " of ", job.modules.size(),
               " layer modules; the last one never freezes");
  }
  return absl::OkStatus();
}

void LeaveOutGraphsThatDoNotFit(v1::RegisterJobRequest* request) {
  while (request->ByteSizeLong() > kMaxRegistration) {
    v1::LayerModule* largest = nullptr;
    for (v1::LayerModule& module : *request->mutable_modules()) {
      if (!module.has_graph()) continue;
      if (largest == nullptr || module.graph().ByteSizeLong() > largest->graph().ByteSizeLong()) largest = &module;
    }
    if (largest == nullptr) return;
    largest->set_graph_error(
        absl::StrCat("its graph of ", largest->graph().ByteSizeLong(), " bytes makes the registration too large"));
    LogWarning("Layer module '", largest->name(), "' has no readings of plasticity: ", largest->graph_error());
    largest->clear_graph();
  }
}

}  // namespace

absl::StatusOr<v1::PolicyConfig> ParsePolicy(absl::string_view json) {
  v1::PolicyConfig policy;
  if (json.empty()) {
    policy.mutable_plasticity();
    return policy;
  }
  const auto status = google::protobuf::util::JsonStringToMessage(std::string(json), &policy);
  if (!status.ok()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_POLICY", status.ToString(), " in ", json,
                      "; the policies and their constants are ", KnownPolicies());
  }
  if (policy.policy_case() == v1::PolicyConfig::POLICY_NOT_SET) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_POLICY", json,
                      " names no policy; the policies and their constants are ", KnownPolicies());
  }
  return policy;
}

absl::StatusOr<v1::RegisterJobRequest> MakeRegistration(const JobDescription& job) {
  EGERIA_RETURN_IF_ERROR(Check(job));
  v1::RegisterJobRequest request;
  EGERIA_ASSIGN_OR_RETURN(*request.mutable_policy(), ParsePolicy(job.policy_json));
  request.set_job_id(job.job_id.text());
  request.set_secret(job.secret);
  request.set_generation(job.generation.value());
  request.set_start_id(job.start_id);
  request.set_world_size(job.world_size);
  request.set_training_job(job.training_job);
  request.set_total_steps(job.total_steps);
  request.mutable_planned_learning_rates()->Assign(job.planned_learning_rates.begin(),
                                                   job.planned_learning_rates.end());
  request.set_device_type(job.device_type);
  request.set_losses_unreported(!job.losses_reported);
  request.set_mode(job.observe ? v1::MODE_OBSERVE : v1::MODE_ACT);
  request.set_budget(job.budget);
  request.set_saved_before(job.saved_before);
  request.set_mean_rate_before(job.mean_rate_before);
  request.set_embedding_prefix(job.embedding_prefix);
  request.set_step(job.step);
  request.set_frozen_prefix(job.frozen_prefix);
  request.set_applied_plan(job.applied_plan.value());
  request.set_host(HostName());
  for (const ModuleDescription& module : job.modules) {
    v1::LayerModule* proto = request.add_modules();
    proto->set_name(module.name);
    proto->set_parameter_count(module.parameter_count);
    proto->set_parameter_bytes(module.parameter_bytes);
    proto->set_graph_error(module.graph_error);
    proto->set_local_reference(module.local_reference);
    proto->set_step_share(module.step_share);
    if (module.graph.has_value()) graph::ToProto(*module.graph, proto->mutable_graph());
  }
  LeaveOutGraphsThatDoNotFit(&request);
  return request;
}

}  // namespace egeria::worker
