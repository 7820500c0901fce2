#include "controller/job/upload_judge.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "controller/job/registration.h"

namespace egeria::controller {
namespace {

template <typename... Args>
absl::Status Bad(const char* name, const Args&... what) {
  return NamedError(absl::StatusCode::kInvalidArgument, name, what...);
}

absl::Status CheckModule(const Job& job, int module) {
  const int count = job.state.module_count();
  if (module >= 0 && module < count) return absl::OkStatus();
  return NamedError(absl::StatusCode::kNotFound, "UNKNOWN_MODULE", "module ", module, " of ", count);
}

absl::Status CheckSampler(const JobTable::Seat& seat, const char* does) {
  if (seat.samples()) return absl::OkStatus();
  return NamedError(absl::StatusCode::kFailedPrecondition, "STALE_REQUEST", "another rank ", does, " for this job");
}

// An unspecified metric means SP loss.
v1::ActivationMetric MetricOf(v1::ActivationMetric given) {
  return given == v1::ACTIVATION_METRIC_UNSPECIFIED ? v1::ACTIVATION_METRIC_SP : given;
}

// The tensor that the metric compares must be of exactly the batch that was asked for: values of different batch sizes
// do not compare.
absl::Status CheckCompared(const v1::UploadBegin& begin, const v1::SamplingRequest& request) {
  const v1::ActivationMetric metric = MetricOf(request.metric());
  const bool norm = metric == v1::ACTIVATION_METRIC_NORM;
  const char* const name = norm ? "output" : "Gram matrix";
  const int batch = request.batch_size();
  if (begin.tensors_size() < 2 || MetricOf(begin.sample().metric()) != metric) {
    return Bad("BAD_SHAPE", "a sample is the module's inputs and, last, the ", name, ", and says that its metric is ",
               v1::ActivationMetric_Name(metric));
  }
  const v1::TensorSpec& compared = begin.tensors(begin.tensors_size() - 1);
  if (compared.dtype() != v1::DATA_TYPE_FLOAT32) return Bad("BAD_DTYPE", "the ", name, " is to be float32");
  if (compared.shape_size() != 2 || compared.shape(0) != batch || (!norm && compared.shape(1) != batch)) {
    return Bad("BAD_SHAPE", "the ", name, " is to be ", batch, " x ",
               norm ? "the size of a sample's output" : absl::StrCat(batch));
  }
  return absl::OkStatus();
}

absl::Status JudgeSnapshot(const Job& job, const v1::UploadBegin& begin) {
  EGERIA_RETURN_IF_ERROR(job.live.requests.CheckSnapshot(begin.snapshot()));
  if (!job.live.graphs.IsLocal(begin.snapshot().module()) || begin.tensors_size() == 0) return absl::OkStatus();
  return Bad("LOCAL_REFERENCE", "its worker evaluates this module's reference: a snapshot of it has no tensors");
}

absl::Status JudgeSample(const Job& job, const v1::UploadBegin& begin) {
  EGERIA_RETURN_IF_ERROR(job.live.requests.CheckSample(begin.sample()));
  if (job.live.graphs.IsLocal(begin.sample().module())) {
    return Bad("LOCAL_REFERENCE", "its worker evaluates this module's reference: it sends readings, not samples");
  }
  return CheckCompared(begin, *job.live.requests.sampling());
}

}  // namespace

absl::Status JudgeUpload(const JobTable::Seat& seat, const v1::UploadBegin& begin) {
  const bool snapshot = begin.has_snapshot();
  EGERIA_RETURN_IF_ERROR(CheckModule(*seat.job, snapshot ? begin.snapshot().module() : begin.sample().module()));
  EGERIA_RETURN_IF_ERROR(CheckSampler(seat, "samples"));
  return snapshot ? JudgeSnapshot(*seat.job, begin) : JudgeSample(*seat.job, begin);
}

absl::Status JudgeReading(const JobTable::Seat& seat, const v1::Reading& reading) {
  EGERIA_RETURN_IF_ERROR(CheckModule(*seat.job, reading.module()));
  if (!std::isfinite(reading.plasticity())) {
    return Bad("READING_NOT_FINITE", "a plasticity of ", reading.plasticity());
  }
  if (reading.plasticity() < 0) return Bad("READING_NEGATIVE", "a plasticity of ", reading.plasticity());
  if (!CanBeStep(reading.step())) return Bad("BAD_MESSAGE", "a reading at step ", reading.step());
  if (!seat.job->live.graphs.IsLocal(reading.module())) {
    return Bad("NOT_LOCAL", "module ", reading.module(), " is evaluated here: its worker sends samples, not readings");
  }
  EGERIA_RETURN_IF_ERROR(CheckSampler(seat, "samples"));
  return seat.job->live.requests.CheckSample(HeaderOf(reading));
}

absl::Status JudgeGradients(const JobTable::Seat& seat, const v1::GradientReading& reading) {
  EGERIA_RETURN_IF_ERROR(CheckGradients(reading, seat.job->state.module_count()));
  EGERIA_RETURN_IF_ERROR(CheckSampler(seat, "tells"));
  return seat.job->live.gradients.Check(reading);
}

v1::SampleHeader HeaderOf(const v1::Reading& reading) {
  v1::SampleHeader header;
  header.set_module(reading.module());
  header.set_first_module(reading.module());
  header.set_step(reading.step());
  header.set_request_version(reading.request_version());
  return header;
}

std::string NameOf(const absl::Status& status) {
  const std::string message(status.message());
  const size_t end = message.find(']');
  return message.empty() || message[0] != '[' || end == std::string::npos ? "OTHER" : message.substr(1, end - 1);
}

}  // namespace egeria::controller
