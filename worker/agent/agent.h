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
#include "worker/accounting/time_ledger.h"
#include "worker/agent/plan_ledger.h"
#include "worker/agent/requests.h"
#include "worker/agent/upload.h"

namespace egeria::worker {

// One layer module as the controller needs to know it.
struct ModuleDescription {
  std::string name;
  int64_t parameter_count = 0;
  int64_t parameter_bytes = 0;
  std::optional<graph::ModuleGraph> graph;
  std::string graph_error;       // why there is no graph
  bool local_reference = false;  // this process evaluates the reference itself, and offers readings; there is no graph
  // The part of a step's time that freezing this module saves once all modules before it are frozen, 0..1; 0: not
  // known.
  double step_share = 0;
};

// The job as this rank registers it. All ranks register the same but for `rank`.
struct JobDescription {
  JobId job_id;
  std::string secret;  // shows the controller that this rank belongs to the job; empty: it makes one for the first rank
  Generation generation;
  uint64_t start_id = 0;  // a random number that all ranks of this start share; 0: `generation` is the generation
  int rank = 0;
  int world_size = 1;
  std::string training_job;
  std::vector<ModuleDescription> modules;
  std::string policy_json;  // egeria.v1.PolicyConfig in protobuf's JSON: {"plasticity": {"window": 5}};
                            // empty: plasticity with its defaults
  int64_t total_steps = 0;  // 0: unknown
  // The learning rates at evenly spread steps of the whole training, the first and the last included. There are at most
  // 1,024, and none where they are not known.
  std::vector<double> planned_learning_rates;
  std::string device_type = "cpu";
  bool observe = false;
  double budget = 0;            // the part of the job's time that is to be saved, and no more; 0: as much as can be
  double saved_before = 0;      // the part of the job's time that was saved before `step`
  double mean_rate_before = 0;  // the mean learning rate of the steps before `step`; 0: unknown
  int embedding_prefix = 0;     // nearly all parameters of the first so many modules are rows of lookup tables
  bool losses_reported = true;  // false: no StepReport will ever have a loss, on no rank
  // Restored from a checkpoint.
  int64_t step = 0;
  int frozen_prefix = 0;
  PlanId applied_plan;
};

// The training loop reports this after each optimizer step.
// The work of the cache of frozen activations in this process; the protocol's CacheReport says more.
struct CacheReport {
  std::string state;
  std::string reason;
  int64_t hits = 0;
  int64_t computed = 0;
  int64_t bytes_read = 0;
  double saved_seconds = 0;
};

struct StepReport {
  int64_t step = 0;  // optimizer steps done
  std::optional<float> loss;
  std::vector<double> learning_rates;
  int frozen_prefix = 0;
  PlanId applied_plan;
  std::shared_ptr<const TimeTotals> time;    // the time that freezing has saved; null: not known yet
  std::shared_ptr<const CacheReport> cache;  // null: there is no cache
  int zero_lr_prefix = 0;    // no parameter of the first so many changes: their learning rates are 0, others' are not
  int frozen_by_script = 0;  // the script lets no parameter of the first so many layer modules train
};

struct AgentCounters {
  int64_t samples_sent = 0;     // readings of both kinds count as samples
  int64_t samples_dropped = 0;  // here, too
  int64_t snapshots_sent = 0;
  int64_t uploads_refused = 0;  // they were sent, and of no use to the controller
  int64_t plans_refused = 0;    // plans of another generation, contradictory ones and nonsense, but not duplicates
  int64_t commits = 0;          // changes of StepReport::applied_plan
  int64_t reconnects = 0;       // streams after the first
  // The processor time that the controller has taken of the cores that this process trains on, over their number. Only
  // rank 0 learns of it.
  double reference_seconds = 0;
  bool connected = false;  // the controller has answered on the present stream
  std::string blocked;     // Directive.blocked of the newest directive
  std::string advice;      // Directive.advice of the newest directive
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
  // The controller has been started for this job a moment ago. It is tried often until it answers, and whoever has
  // started it says where it ends.
  bool starts_with_job = false;
};

// A rank's line to the controller. A thread of its own keeps the stream open, reconnects, sends heartbeats and queued
// uploads, and takes in what the controller wants. No method blocks on the network: with no controller, samples are
// dropped and counted, one warning is logged, and nothing else changes.
//
// Thread-safe. Stop() is idempotent and bounded in time; the destructor calls it. In a forked child every
// method does nothing.
class Agent {
 public:
  // Never fails for want of a controller. Errors: INVALID_ARGUMENT no controller would take the description.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(AgentOptions options, JobDescription job);
  virtual ~Agent() = default;

  virtual void ReportStep(const StepReport& report) = 0;

  virtual std::optional<SamplingRequest> sampling() const = 0;
  virtual std::optional<SnapshotRequest> snapshot() const = 0;
  virtual std::optional<GradientRequest> gradients() const = 0;

  // The plans that were received and not refused; see PlanLedger.
  virtual PlanId watermark() const = 0;
  virtual std::optional<Plan> plan(PlanId id) const = 0;

  // Queues an upload, and returns whether it did. When the queue is full the oldest sample in it is dropped and
  // counted; a snapshot takes the place of an older one. Every other kind of upload counts as a sample there.
  virtual bool Offer(Upload upload) = 0;

  virtual AgentCounters counters() const = 0;

  // `finished`: training has ended normally, and the controller may close the job. Waits for the last
  // heartbeat to leave, at most two seconds.
  virtual void Stop(bool finished) = 0;
};

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_AGENT_H_
