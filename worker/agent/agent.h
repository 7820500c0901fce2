#ifndef EGERIA_WORKER_AGENT_AGENT_H_
#define EGERIA_WORKER_AGENT_AGENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/graph/graph.h"
#include "common/rpc/tls_files.h"
#include "common/tensor/wire_tensor.h"
#include "worker/agent/plan_ledger.h"

namespace egeria::worker {

// One layer module as the controller needs to know it.
struct ModuleDescription {
  std::string name;
  int64_t parameter_count = 0;
  int64_t parameter_bytes = 0;
  std::optional<graph::ModuleGraph> graph;
  std::string graph_error;       // why there is none
  bool local_reference = false;  // this process evaluates the reference itself, and offers readings; no graph
  // Part of the time of a step that freezing this module saves once all before it are frozen, 0..1; 0: not known.
  double step_share = 0;
};

// The job as this rank registers it. All ranks register the same but for `rank`.
struct JobDescription {
  JobId job_id;
  Generation generation;
  int rank = 0;
  int world_size = 1;
  std::string training_job;
  std::vector<ModuleDescription> modules;
  std::string policy_json;  // egeria.v1.PolicyConfig in protobuf's JSON: {"plasticity": {"window": 5}};
                            // empty: plasticity with its defaults
  int64_t total_steps = 0;  // 0: unknown
  // Learning rates at evenly spread steps of the whole training, the first and the last included; at most 1,024,
  // none where they are not known.
  std::vector<double> planned_learning_rates;
  std::string device_type = "cpu";
  bool observe = false;
  double budget = 0;            // part of the job's time that is to be saved, and no more; 0: as much as can be
  double saved_before = 0;      // the same, that was saved before `step`
  double mean_rate_before = 0;  // mean learning rate of the steps before `step`; 0: unknown
  int embedding_prefix = 0;     // of the first so many modules nearly all parameters are rows of lookup tables
  bool losses_reported = true;  // false: no StepReport will ever have a loss, on no rank
  int64_t step = 0;             // restored from a checkpoint, with the next two
  int frozen_prefix = 0;
  PlanId applied_plan;
};

// What freezing has saved of this process's time so far, and what Egeria has taken of it.
struct AccountReport {
  double saved_seconds = 0;
  double spent_seconds = 0;
  double measuring_seconds = 0;    // of these, for what the policy decides by
  double active_step_seconds = 0;  // mean time of a step with nothing frozen, Egeria's own time left out
  double frozen_step_seconds = 0;  // the same with what is frozen now; 0: nothing is, or it has not been measured
  int frozen_prefix = 0;           // of frozen_step_seconds
};

// What the training loop tells after each optimizer step.
struct StepReport {
  int64_t step = 0;  // optimizer steps done
  std::optional<float> loss;
  std::vector<double> learning_rates;
  int frozen_prefix = 0;
  PlanId applied_plan;
  std::optional<AccountReport> account;  // empty: not known (yet)
  int zero_lr_prefix = 0;  // of the first so many no parameter changes: their learning rates are 0, others' are not
};

// How far a module's output A is from that of its reference, R; see ActivationMetric in controller.proto.
enum class ActivationMetric {
  kSpLoss,          // of the Gram matrices
  kActivationNorm,  // ||A - R|| / ||R||
};

// "Probe this module at every step that is a multiple of interval_steps": offer a Sample, or of a module with
// local_reference a Reading.
struct SamplingRequest {
  ModuleIndex module;
  ModuleIndex first_module;  // differs from module only for the whole-prefix scope
  int interval_steps = 1;
  int batch_size = 2;
  int64_t version = 0;
  ActivationMetric metric = ActivationMetric::kSpLoss;
};

// "Send the weights of modules first_module..module, one Snapshot each, unless this version has been sent." Of a
// module with local_reference: take them as the reference of the readings that follow, and offer a Snapshot
// without tensors.
struct SnapshotRequest {
  ModuleIndex module;
  ModuleIndex first_module;
  int64_t version = 0;
};

// "Tell of the gradients of modules first_module and behind at every step that is a multiple of interval_steps":
// offer a GradientReading. Gradients of frozen modules among them are computed for that, and thrown away.
struct GradientRequest {
  ModuleIndex first_module;
  int interval_steps = 1;
  int64_t version = 0;
};

// Inputs of first_module (first b samples), and last what the metric compares of module's output, in float32: "gram",
// b x b, or "output", b x d.
struct Sample {
  ModuleIndex module;
  ModuleIndex first_module;
  int64_t step = 0;
  int64_t request_version = 0;
  std::vector<WireTensor> tensors;
};

struct Snapshot {
  ModuleIndex module;
  int64_t step = 0;
  int64_t version = 0;
  std::vector<WireTensor> tensors;
};

// What a probe gave where the process evaluates the reference itself.
struct Reading {
  ModuleIndex module;
  int64_t step = 0;
  int64_t request_version = 0;  // of the SamplingRequest
  double plasticity = 0;        // distance to the newest snapshot's output; finite and at least 0, or it is refused
};

// The gradients of one step, at fixed weights, of modules first_module, first_module + 1 and so on to the last, told
// apart in equal parts of its samples. g_p: gradient of part p's mean loss.
struct GradientReading {
  ModuleIndex first_module;
  int64_t step = 0;
  int64_t request_version = 0;          // of the GradientRequest
  int parts = 1;                        // 1: noise cannot be told, and both lists are the same
  std::vector<double> mean_of_squares;  // mean over p of ||g_p||^2, by module
  std::vector<double> square_of_mean;   // ||mean over p of g_p||^2, by module
  int64_t samples = 0;                  // of the step, over all ranks; 0: not known
  std::vector<double> progress;         // estimate of E g' P E g, P the optimizer's, by module; empty: not known
};

struct AgentCounters {
  int64_t samples_sent = 0;  // with readings of both kinds, here and in the next
  int64_t samples_dropped = 0;
  int64_t snapshots_sent = 0;
  int64_t uploads_refused = 0;  // sent, and of no use to the controller
  int64_t plans_refused = 0;    // of another generation, contradictory or nonsense; not harmless duplicates
  int64_t commits = 0;          // changes of StepReport::applied_plan
  int64_t reconnects = 0;       // streams after the first
  // Processor time that the controller has taken of the cores that this process trains on, over their number. Rank 0's.
  double reference_seconds = 0;
  bool connected = false;  // the controller has answered on the present stream
};

struct AgentOptions {
  std::string controller;                              // "unix:/path" or "host:port"
  rpc::TlsFiles tls = rpc::TlsFilesFromEnvironment();  // for mutual TLS with a controller elsewhere
  size_t queue_bytes = size_t{256} << 20;              // samples and snapshots waiting to be sent
  size_t queue_samples = 8;
  absl::Duration heartbeat_interval = absl::Seconds(1);  // until the controller names another
  absl::Duration reconnect_backoff = absl::Seconds(1);   // ten times as long where asking often is no use
  // A controller that answers nothing for this long, or for three heartbeats if that is longer, is taken for
  // dead, though its connection stands: its process may be stopped.
  absl::Duration silence_limit = absl::Seconds(10);
};

// A rank's line to the controller. One thread of its own keeps the stream open, reconnects, sends
// heartbeats and queued uploads, and takes in what the controller wants. No method blocks on the network:
// with no controller, samples are dropped and counted, one warning is logged, and nothing else changes.
//
// Thread-safe. Stop() is idempotent and bounded in time; the destructor calls it. In a forked child every
// method does nothing.
class Agent {
 public:
  // Never fails for want of a controller. INVALID_ARGUMENT for a description that no controller would take.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(AgentOptions options, JobDescription job);
  virtual ~Agent() = default;

  virtual void ReportStep(const StepReport& report) = 0;

  virtual std::optional<SamplingRequest> sampling() const = 0;
  virtual std::optional<SnapshotRequest> snapshot() const = 0;
  virtual std::optional<GradientRequest> gradients() const = 0;

  // Plans received and not refused; see PlanLedger.
  virtual PlanId watermark() const = 0;
  virtual std::optional<Plan> plan(PlanId id) const = 0;

  // Queues an upload. When the queue is full the oldest sample in it is dropped and counted; a snapshot
  // takes the place of an older one. A reading, of either kind, takes the place of a sample. Returns false if this
  // one was not queued.
  virtual bool OfferSample(Sample sample) = 0;
  virtual bool OfferReading(const Reading& reading) = 0;
  virtual bool OfferGradients(GradientReading reading) = 0;
  virtual bool OfferSnapshot(Snapshot snapshot) = 0;

  virtual AgentCounters counters() const = 0;

  // `finished`: training has ended normally, and the controller may close the job. Waits for the last
  // heartbeat to leave, at most two seconds.
  virtual void Stop(bool finished) = 0;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_AGENT_H_
