#include "worker/trainer/controller_link.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "worker/freeze/embedding_prefix.h"
#include "worker/trainer/launch.h"
#include "worker/trainer/trace_graph.h"

namespace egeria::trainer {
namespace {

// Two batch sizes tell a traced graph that has the first one baked in.
constexpr int64_t kTraceBatch = 4;

// Describes every module and chooses what its snapshots hold: the weights that the graph names.
std::vector<worker::ModuleDescription> Describe(const LinkDescription& description,
                                                std::vector<std::vector<worker::NamedTensor>>* snapshot_tensors) {
  at::NoGradGuard no_gradients;
  std::vector<worker::ModuleDescription> described;
  std::vector<int64_t> shape = description.image_shape;
  shape.insert(shape.begin(), kTraceBatch);
  at::Tensor input = at::zeros(shape, at::TensorOptions().device(description.device));
  for (const worker::LayerModule& module : *description.modules) {
    worker::ModuleDescription entry;
    entry.name = module.name();
    entry.parameter_count = module.parameter_count();
    entry.parameter_bytes = module.parameter_bytes();
    std::vector<worker::NamedTensor>& weights = snapshot_tensors->emplace_back();
    absl::StatusOr<TracedModule> traced = TraceModule(module, input);
    if (traced.ok()) {
      weights = std::move(traced->weights);
      entry.graph = std::move(traced->graph);
    } else {
      entry.graph_error = std::string(traced.status().message());
      LogWarning("layer module '", module.name(), "' will not freeze: ", entry.graph_error);
    }
    if (input.defined()) input = OutputShapedLike(module, input);
    described.push_back(std::move(entry));
  }
  return described;
}

// The generation if one is given, else the id of this start, which the controller numbers; the other one is 0.
std::string OwnStart(const Options& options) {
  if (options.first_generation > 0) return absl::StrCat(options.first_generation + options.restarts, " 0");
  std::random_device random;
  return absl::StrCat("0 ", uint64_t{random()} << 32 | random() | 1);
}

}  // namespace

absl::StatusOr<LinkedAgent> LinkController(const LinkDescription& description) {
  const Options& options = *description.options;
  LinkedAgent link;
  worker::JobDescription job;
  const std::string own_id = options.job_id.empty() ? JobId::Random().text() : options.job_id;
  EGERIA_ASSIGN_OR_RETURN(const std::string job_id, ShareFromRankZero(*description.member, "job_id", own_id));
  job.job_id = JobId(job_id);
  const std::string own_secret = options.job_secret.empty() ? RandomToken() : options.job_secret;
  EGERIA_ASSIGN_OR_RETURN(job.secret, ShareFromRankZero(*description.member, "job_secret", own_secret));
  EGERIA_ASSIGN_OR_RETURN(const std::string start, ShareFromRankZero(*description.member, "start", OwnStart(options)));
  const std::pair<std::string, std::string> numbers = absl::StrSplit(start, ' ');
  int64_t generation = 0;
  EGERIA_CHECK(absl::SimpleAtoi(numbers.first, &generation) && absl::SimpleAtoi(numbers.second, &job.start_id));
  job.generation = Generation(generation);
  job.rank = description.member->rank;
  job.world_size = description.member->world_size;
  job.training_job = options.training_job;
  job.modules = Describe(description, &link.snapshot_tensors);
  for (size_t i = 0; i < std::min(description.step_shares.size(), job.modules.size()); ++i) {
    job.modules[i].step_share = description.step_shares[i];
  }
  EGERIA_ASSIGN_OR_RETURN(job.policy_json, BuildPolicyJson(options));
  job.total_steps = description.total_steps;
  job.planned_learning_rates = description.planned_learning_rates;
  job.device_type = c10::DeviceTypeName(description.device.type(), /*lower_case=*/true);
  job.observe = options.observe;
  job.budget = options.budget;
  job.saved_before = description.saved_before;
  job.mean_rate_before = description.mean_rate_before;
  job.embedding_prefix = worker::EmbeddingPrefix(*description.modules);
  job.step = description.step;
  job.frozen_prefix = description.frozen_prefix;
  job.applied_plan = description.applied_plan;
  worker::AgentOptions agent;
  agent.controller = options.controller;
  EGERIA_ASSIGN_OR_RETURN(link.agent, worker::Agent::Start(std::move(agent), std::move(job)));
  return link;
}

std::string MetricsAddress(const std::string& address, int local_rank) {
  const size_t colon = address.rfind(':');
  const std::string host = colon == std::string::npos ? "" : address.substr(0, colon + 1);
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(host.size()), &port) || port == 0) return address;
  return absl::StrCat(host, port + local_rank);
}

}  // namespace egeria::trainer
