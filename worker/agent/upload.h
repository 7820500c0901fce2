#ifndef EGERIA_WORKER_AGENT_UPLOAD_H_
#define EGERIA_WORKER_AGENT_UPLOAD_H_

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/tensor/wire_tensor.h"
#include "worker/agent/requests.h"

// A rank sends uploads to the controller beside its heartbeats. Every upload answers a request and repeats its version.
//
// A new kind of upload is added in three places of the worker: here (its struct, and its name in Upload), in
// upload_cutter.cc (its first message), and where it is made and given to RankLink::Offer().
namespace egeria::worker {

// A sample is one probe. It has the inputs of first_module, for the first b samples of the batch, and last, in float32,
// what `metric` compares of the output of `module`. That is its Gram matrix (b x b), or the output itself (b x d).
struct Sample {
  using Request = SamplingRequest;  // the kind of request that a Sample answers
  ModuleIndex module;
  ModuleIndex first_module;
  int64_t step = 0;
  int64_t request_version = 0;
  std::vector<WireTensor> tensors = {};
  ActivationMetric metric = ActivationMetric::kSpLoss;
};

// The sample of `step` that answers the request; its tensors are still to come.
Sample SampleOf(const SamplingRequest& request, int64_t step);

// The weights of one module after `step`. There are no tensors where the module has a local_reference.
struct Snapshot {
  using Request = SnapshotRequest;
  ModuleIndex module;
  int64_t step = 0;
  int64_t version = 0;  // the version of the request
  std::vector<WireTensor> tensors = {};
};

// The result of a probe, where this process evaluates the reference itself.
struct Reading {
  using Request = SamplingRequest;
  ModuleIndex module;
  int64_t step = 0;
  int64_t request_version = 0;
  double plasticity = 0;  // the distance to the newest snapshot's output; finite and at least 0, or it is refused
};

// The gradients of one step, at fixed weights, of modules first_module, first_module + 1 and so on to the last. They
// are told apart in equal parts of the step's samples; g_p is the gradient of part p's mean loss. A rank fills in what
// it knows of its own samples, and GradientExchange makes one reading of what all ranks know.
struct GradientReading {
  using Request = GradientRequest;
  ModuleIndex first_module;
  int64_t step = 0;
  int64_t request_version = 0;
  int parts = 1;                             // 1: noise cannot be told, and both lists are the same
  std::vector<double> mean_of_squares = {};  // the mean over p of ||g_p||^2, by module
  std::vector<double> square_of_mean = {};   // ||mean over p of g_p||^2, by module; the mean is that of all ranks
  int64_t samples = 0;                       // the number of samples; 0: not known
  // An unbiased estimate of E g' P E g, by module, with P what the optimizer multiplies a gradient with. Empty: not
  // known. The estimate of all ranks is the mean of theirs.
  std::vector<double> progress = {};
};

using Upload = std::variant<Sample, Snapshot, Reading, GradientReading>;

// The tensors of an upload; kinds that have none give an empty list.
const std::vector<WireTensor>& TensorsOf(const Upload& upload);

// The bytes of all its tensors.
size_t ByteSizeOf(const Upload& upload);

// Every tensor holds as many bytes as its type and shape say. Errors: INVALID_ARGUMENT names the tensor.
absl::Status CheckTensors(const Upload& upload);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_AGENT_UPLOAD_H_
