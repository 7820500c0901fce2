#ifndef EGERIA_TESTS_SUPPORT_JOB_FIXTURES_H_
#define EGERIA_TESTS_SUPPORT_JOB_FIXTURES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "egeria/v1/controller.pb.h"
#include "tests/support/temp_folder.h"

// Small jobs and messages that tests of the controller share.
namespace egeria::testing {

// A UUID that differs with `number`.
std::string TestJobId(int number);

// The graph of y = relu(x): one input "x" (-1 x 4), one weight "w" that nothing uses.
v1::ModuleGraph ReluGraph();

// A job of 2 ranks and `modules` modules with usable graphs, under the plasticity policy with n = 10, W = 3,
// b = 2 and no bootstrapping.
v1::RegisterJobRequest TestRegistration(int number, int modules = 3);

// The sample and the snapshot that a request asks for, with the bytes of their tensors.
struct TestUpload {
  v1::UploadBegin begin;
  std::string bytes;
};
TestUpload SampleUpload(int64_t upload_id, const v1::SamplingRequest& request, int64_t step, float gram_value = 1.0f);
TestUpload SnapshotUpload(int64_t upload_id, const v1::SnapshotRequest& request, int module, int64_t step);
// The same of modules whose reference the worker evaluates.
v1::Reading ReadingFor(int64_t upload_id, const v1::SamplingRequest& request, int64_t step, double plasticity);
TestUpload EmptySnapshot(int64_t upload_id, const v1::SnapshotRequest& request, int64_t step);

// Makes the worker evaluate all modules but the last.
void MakeLocal(v1::RegisterJobRequest* request);

// The messages that carry an upload, in chunks of at most `chunk` bytes.
std::vector<v1::WorkerMessage> MessagesOf(const TestUpload& upload, size_t chunk = size_t{1} << 20);

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_JOB_FIXTURES_H_
