#include "controller/job/registration.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "controller/job/ownership.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "xxhash.h"

namespace egeria::controller {
namespace {

template <typename... Args>
absl::Status Bad(const Args&... what) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_REGISTRATION", what...);
}

template <typename... Args>
absl::Status Conflict(const Args&... what) {
  return NamedError(absl::StatusCode::kAlreadyExists, "JOB_CONFLICT", what...,
                    ": another job uses this id; give this one an id of its own");
}

absl::Status ValidateModules(const v1::RegisterJobRequest& request, const RegistrationLimits& limits) {
  if (request.modules_size() < 2 || request.modules_size() > limits.max_modules) {
    return Bad(request.modules_size(), " modules; 2 to ", limits.max_modules, " are possible");
  }
  std::set<std::string> names;
  for (const v1::LayerModule& module : request.modules()) {
    if (module.name().empty() || module.name().size() > limits.max_name_length) {
      return Bad("a module's name has ", module.name().size(), " bytes; 1 to ", limits.max_name_length,
                 " are possible");
    }
    if (!names.insert(module.name()).second) return Bad("two modules are named '", module.name(), "'");
    if (module.parameter_count() < 0 || module.parameter_count() > limits.max_parameters ||
        module.parameter_bytes() < 0 || module.parameter_bytes() > limits.max_parameters) {
      return Bad("module '", module.name(), "' has an impossible size");
    }
    if (!(module.step_share() >= 0 && module.step_share() <= 1)) {  // this refuses NaN, too
      return Bad("module '", module.name(), "' takes ", module.step_share(), " of a step's time; 0 to 1 are possible");
    }
    if (module.local_reference() && module.has_graph()) {
      return Bad("module '", module.name(), "' has a local reference and a graph; it may have one of them");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateRegistration(const v1::RegisterJobRequest& request, const RegistrationLimits& limits) {
  if (!JobId(request.job_id()).IsValid()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "BAD_JOB_ID",
                      "not a UUID in lower-case canonical form (8-4-4-4-12 hexadecimal digits)");
  }
  if (request.generation() < 0 || request.generation() > limits.max_generation) {
    return Bad("generation ", request.generation());
  }
  const size_t secret = request.secret().size();
  if (secret > 0 && (secret < kMinSecret || secret > kMaxSecret)) {
    return Bad("a secret of ", secret, " bytes; ", kMinSecret, " to ", kMaxSecret, " are possible");
  }
  if (request.world_size() < 1 || request.world_size() > limits.max_world_size) {
    return Bad("world size ", request.world_size(), "; 1 to ", limits.max_world_size, " are possible");
  }
  for (const std::string* text : {&request.training_job(), &request.host(), &request.device_type()}) {
    if (text->size() > limits.max_name_length) {
      return Bad("training_job, host and device_type have at most ", limits.max_name_length, " bytes");
    }
  }
  EGERIA_RETURN_IF_ERROR(ValidateModules(request, limits));
  const int entries =
      std::max(request.policy().plasticity().unfreeze_steps_size(), request.policy().schedule().entries_size());
  if (entries > limits.max_policy_entries) {
    return Bad("a policy with a list of ", entries, " entries; at most ", limits.max_policy_entries, " are possible");
  }
  if (!CanBeStep(request.total_steps())) return Bad("total_steps ", request.total_steps());
  if (!CanBeStep(request.step())) return Bad("step ", request.step());
  if (request.planned_learning_rates_size() > limits.max_planned_rates) {
    return Bad(request.planned_learning_rates_size(), " planned learning rates; at most ", limits.max_planned_rates,
               " are possible");
  }
  for (const double rate : request.planned_learning_rates()) {
    if (!std::isfinite(rate) || rate < 0) return Bad("a planned learning rate of ", rate);
  }
  if (request.embedding_prefix() < 0 || request.embedding_prefix() >= request.modules_size()) {
    return Bad(request.embedding_prefix(), " lookup tables of ", request.modules_size(), " modules");
  }
  const double saved = request.saved_before();
  if (!(saved >= 0 && saved <= 1)) return Bad("saved_before ", saved);
  if (!std::isfinite(request.mean_rate_before()) || request.mean_rate_before() < 0) {
    return Bad("mean_rate_before ", request.mean_rate_before());
  }
  if (request.applied_plan() < 0) return Bad("applied_plan ", request.applied_plan());
  if (request.journal_epoch() < 0 || request.journal_epoch() > kMaxSteps) {
    return Bad("journal_epoch ", request.journal_epoch());
  }
  if (request.received_plan() < 0) return Bad("received_plan ", request.received_plan());
  if (request.frozen_prefix() < 0 || request.frozen_prefix() >= request.modules_size()) {
    return Bad("frozen_prefix ", request.frozen_prefix(), " of ", request.modules_size(),
               " modules (the last one never freezes)");
  }
  if (request.mode() != v1::MODE_UNSPECIFIED && request.mode() != v1::MODE_ACT && request.mode() != v1::MODE_OBSERVE) {
    return Bad("mode ", static_cast<int>(request.mode()));
  }
  return absl::OkStatus();
}

absl::Status CompareRegistrations(const v1::RegisterJobRequest& known, const v1::RegisterJobRequest& request,
                                  bool restarted) {
  if (!restarted && known.world_size() != request.world_size()) {
    return Conflict("world size ", request.world_size(), " where ", known.world_size(), " is known");
  }
  if (known.modules_size() != request.modules_size()) {
    return Conflict(request.modules_size(), " modules where ", known.modules_size(), " are known");
  }
  for (int i = 0; i < known.modules_size(); ++i) {
    const v1::LayerModule& a = known.modules(i);
    const v1::LayerModule& b = request.modules(i);
    if (a.name() != b.name() || a.parameter_count() != b.parameter_count() ||
        a.parameter_bytes() != b.parameter_bytes()) {
      return Conflict("module ", i, " is '", b.name(), "' of ", b.parameter_count(), " parameters where '", a.name(),
                      "' of ", a.parameter_count(), " is known");
    }
  }
  return absl::OkStatus();
}

v1::RegisterJobRequest WithSettingsOf(v1::RegisterJobRequest known, const v1::RegisterJobRequest& now) {
  *known.mutable_policy() = now.policy();
  known.set_total_steps(now.total_steps());
  *known.mutable_planned_learning_rates() = now.planned_learning_rates();
  known.set_budget(now.budget());
  if (now.world_size() > 0) known.set_world_size(now.world_size());
  return known;
}

uint64_t GraphFingerprint(const v1::RegisterJobRequest& request) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.SetSerializationDeterministic(true);  // keyword arguments are a map
    for (const v1::LayerModule& module : request.modules()) {
      out.WriteVarint32(module.has_graph() ? 1 : module.local_reference() ? 2 : 0);
      if (!module.has_graph()) continue;
      out.WriteVarint64(module.graph().ByteSizeLong());
      module.graph().SerializeToCodedStream(&out);
    }
  }
  return XXH3_64bits(bytes.data(), bytes.size());
}

int64_t NewestPlanOf(const v1::RegisterJobRequest& request) {
  return std::max(request.applied_plan(), request.received_plan());
}

}  // namespace egeria::controller
