#ifndef EGERIA_CONTROLLER_REFERENCE_EVALUATOR_H_
#define EGERIA_CONTROLLER_REFERENCE_EVALUATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/graph/graph.h"
#include "common/plasticity/activation_metric.h"
#include "common/tensor/wire_tensor.h"

namespace egeria::reference {

// One probe of a training model, which runs modules first_module..module one after the other.
struct SubmittedSample {
  ModuleIndex first_module;
  ModuleIndex module;
  int64_t step = 0;
  int64_t request_version = 0;
  int64_t tag = 0;  // comes back with the result
  plasticity::ActivationMetric metric = plasticity::ActivationMetric::kSpLoss;
  std::vector<WireTensor> tensors;  // the inputs of first_module, and last what the metric compares: see CheckSample()
};

// The result of evaluating one sample.
struct Evaluation {
  double plasticity = 0;  // the distance between training's output and the reference's
  std::string backend;    // "int8", "bf16", "prepacked", "aten"
  // The processor time of packing new weights, of the reference's forward pass, of the distance and, where they are
  // due, of trials of backends; what the thread waited for a core is left out. With several intra-op threads it is the
  // evaluator's own times their number, as if the others, which join in for parts of the work, took as much.
  absl::Duration compute;
};

struct EvaluatorOptions {
  int threads = 1;            // intra-op threads of the reference
  std::vector<int> cpus;      // pin to these; empty: no pinning
  double max_cpu_load = 0.5;  // jobs that share no CPU are evaluated only while other processes use less of the
                              // machine than this part
  size_t max_queue_bytes = size_t{256} << 20;  // samples that wait
  size_t max_weight_bytes = size_t{2} << 30;   // snapshots of all jobs; the job with the most gives way
  size_t max_samples_per_job = 4;              // the oldest is dropped
  std::vector<std::string> backends = {"int8", "bf16", "prepacked", "aten"};  // allowed, by preference
  absl::Duration deadline = absl::Seconds(20);  // processor time of one sample; what takes more is not tried again
  size_t memory_bytes = size_t{4} << 30;        // limit for the values of one evaluation
  std::string program;                          // the file egeria-reference; empty: beside this program's
  // Tests inject these. cpu_load: share of the machine's CPU time in use, 0..1.
  std::function<double()> cpu_load;
  absl::Duration load_poll = absl::Milliseconds(200);  // how often it is read while samples wait for it
};

// How a job's samples are to be scheduled.
struct JobTraits {
  // Training computes on this machine's CPUs: run at idle priority, whatever the load; a sample that is
  // deadline_steps old is then evaluated at normal priority, one twice as old is dropped.
  bool shares_cpu = false;
  int64_t deadline_steps = 0;
};

struct EvaluatorCounters {
  int64_t evaluated = 0;
  int64_t dropped_queue_full = 0;
  int64_t dropped_late = 0;
  int64_t snapshots = 0;
  size_t queued_bytes = 0;
  size_t weight_bytes = 0;
  std::map<std::string, int64_t> engine_ends;  // processes that have ended, by reason: see EngineProcess
  size_t engine_resident_bytes = 0;
  double engine_cpu_seconds = 0;
};

// The controller's reference engine behind a queue: holds each job's module graphs and the snapshots of their weights,
// and turns samples into plasticity readings, one after the other, when the load gate allows.
//
// The engine itself, and torch with it, is a process of its own, egeria-reference (controller/engine), since nobody can
// tell which graphs crash or never end:
//
//   SubmitSample()   -> SampleQueue     It says whose turn it is: jobs share the engine's time, not its readings.
//   SubmitSnapshot() -> SharedMemory    Tensors lie there. The process can read them, and only read.
//   a thread         -> EngineContents  It makes the request: a sample, and what the process lacks.
//                    -> EngineProcess   It sends that, and waits for the reading, the deadline or the process's end.
//
// The process is started with the first sample, and again after its end; this one keeps all graphs and weights, so that
// other jobs only wait for a second. A graph of which the process dies twice, or that takes more than the deadline, is
// refused from then on: Result::graph_refused, and the status that later submissions get.
//
// Thread-safe. Callbacks run on the evaluator's thread without any lock held, once for each sample that is evaluated,
// also where that fails. Errors: INTERNAL [REFERENCE_FAILED]; RESOURCE_EXHAUSTED [GRAPH_TOO_LARGE]; INVALID_ARGUMENT
// [BAD_ARGUMENT], [UNKNOWN_OP] the graph does not fit the operators' schemas; those of EngineProcess::Receive().
// Samples that are dropped are only counted. A callback may submit, but not stop. Stop() is idempotent, drops what is
// queued, ends what is running and returns within a second.
class Evaluator {
 public:
  struct Result {
    JobId job;
    ModuleIndex module;
    int64_t step = 0;  // the three numbers are those of the sample
    int64_t request_version = 0;
    int64_t tag = 0;
    absl::StatusOr<Evaluation> evaluation;
    bool graph_refused = false;  // nothing that is submitted for this module is evaluated any more
  };
  using Callback = std::function<void(const Result&)>;

  static absl::StatusOr<std::unique_ptr<Evaluator>> Start(EvaluatorOptions options, Callback on_result);
  virtual ~Evaluator() = default;

  // Takes over a job's modules (an empty graph: cannot be evaluated). Replaces what was known of the job,
  // keeping references whose graph is unchanged. Returns one status per module: OK, or why it is refused:
  // INVALID_ARGUMENT with a name of graph::Validate(); FAILED_PRECONDITION [NO_GRAPH], or with what an evaluation has
  // refused the unchanged graph for.
  virtual std::vector<absl::Status> SetJob(const JobId& job,
                                           const std::vector<std::optional<graph::ModuleGraph>>& modules,
                                           const JobTraits& traits) = 0;
  virtual void RemoveJob(const JobId& job) = 0;

  // Replaces the weights of one module's reference for the samples that are submitted after it. Tensors that the graph
  // does not name are ignored.
  // Errors: NOT_FOUND [UNKNOWN_JOB], [UNKNOWN_MODULE]; what SetJob() returned for a module that was refused;
  // INVALID_ARGUMENT [MISSING_WEIGHT], [BAD_SHAPE], [BAD_DTYPE], [SNAPSHOT_NOT_FINITE]; RESOURCE_EXHAUSTED
  // [QUEUE_FULL].
  virtual absl::Status SubmitSnapshot(const JobId& job, ModuleIndex module, int64_t version, int64_t step,
                                      std::vector<WireTensor> weights) = 0;

  // Queues a sample. Errors: those of SubmitSnapshot, [SAMPLE_NOT_FINITE], and FAILED_PRECONDITION [NO_REFERENCE] where
  // a module has no weights yet.
  virtual absl::Status SubmitSample(const JobId& job, SubmittedSample sample) = 0;

  // The job's newest step, for deadlines.
  virtual void ReportStep(const JobId& job, int64_t step) = 0;

  virtual EvaluatorCounters counters() const = 0;
  // OK unless the engine's process could not be started when it was last tried.
  virtual absl::Status health() const { return absl::OkStatus(); }
  virtual void Stop() = 0;
};

}  // namespace egeria::reference

#endif  // EGERIA_CONTROLLER_REFERENCE_EVALUATOR_H_
