#ifndef EGERIA_CONTROLLER_JOB_UPLOAD_JUDGE_H_
#define EGERIA_CONTROLLER_JOB_UPLOAD_JUDGE_H_

#include <string>

#include "absl/status/status.h"
#include "controller/job/job_table.h"
#include "egeria/v1/controller.pb.h"

// Whether what a rank sends is wanted: the one place that decides it. Pure. A rank's upload is judged when it begins,
// so that bytes that nobody wants are not taken in, and by the same words when it is complete, since another decision
// may have been taken meanwhile.
//
// Errors, which are the UploadResult's reason: NOT_FOUND [UNKNOWN_MODULE]; FAILED_PRECONDITION [STALE_REQUEST] it is
// not, or no longer, asked for, or another rank is asked; INVALID_ARGUMENT with the name of what is wrong with it.
namespace egeria::controller {

// A snapshot or a sample, by its header and the tensors that it announces.
absl::Status JudgeUpload(const JobTable::Seat& seat, const v1::UploadBegin& begin);

// A reading of a module that its worker evaluates.
absl::Status JudgeReading(const JobTable::Seat& seat, const v1::Reading& reading);

// The gradients of a step.
absl::Status JudgeGradients(const JobTable::Seat& seat, const v1::GradientReading& reading);

// The sample that a reading stands for.
v1::SampleHeader HeaderOf(const v1::Reading& reading);

// "STALE_REQUEST" for "[STALE_REQUEST] ...", and "OTHER" for an error without a name.
std::string NameOf(const absl::Status& status);

}  // namespace egeria::controller

#endif  // EGERIA_CONTROLLER_JOB_UPLOAD_JUDGE_H_
