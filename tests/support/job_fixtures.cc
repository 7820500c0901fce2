#include "tests/support/job_fixtures.h"

#include <cstdio>
#include <cstring>

namespace egeria::testing {
namespace {

void AddTensor(const std::string& name, std::vector<int64_t> shape, float value, TestUpload* upload) {
  v1::TensorSpec* spec = upload->begin.add_tensors();
  spec->set_name(name);
  spec->set_dtype(v1::DATA_TYPE_FLOAT32);
  int64_t count = 1;
  for (int64_t size : shape) {
    spec->add_shape(size);
    count *= size;
  }
  for (int64_t i = 0; i < count; ++i) {
    upload->bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
}

}  // namespace

std::string TestJobId(int number) {
  char text[37];
  std::snprintf(text, sizeof(text), "%08x-0000-4000-8000-000000000000", static_cast<unsigned>(number));
  return text;
}

v1::ModuleGraph ReluGraph() {
  v1::ModuleGraph graph;
  v1::TensorSpec* x = graph.add_inputs();
  x->set_name("x");
  x->set_dtype(v1::DATA_TYPE_FLOAT32);
  x->add_shape(-1);
  x->add_shape(4);
  v1::TensorSpec* w = graph.add_weights();
  w->set_name("w");
  w->set_dtype(v1::DATA_TYPE_FLOAT32);
  w->add_shape(4);
  v1::Node* node = graph.add_nodes();
  node->set_op("aten::relu");
  node->add_args()->set_value("x");
  node->add_outputs("y");
  graph.add_outputs("y");
  return graph;
}

v1::RegisterJobRequest TestRegistration(int number, int modules) {
  v1::RegisterJobRequest request;
  request.set_job_id(TestJobId(number));
  request.set_world_size(2);
  request.set_training_job("job" + std::to_string(number));
  for (int i = 0; i < modules; ++i) {
    v1::LayerModule* module = request.add_modules();
    module->set_name("layer" + std::to_string(i));
    module->set_parameter_count(100 * (i + 1));
    module->set_parameter_bytes(400 * (i + 1));
    *module->mutable_graph() = ReluGraph();
  }
  v1::PlasticityPolicy* policy = request.mutable_policy()->mutable_plasticity();
  policy->set_interval_steps(10);
  policy->set_window(3);
  policy->set_batch_size(2);
  policy->set_bootstrap(false);
  request.set_total_steps(10'000);
  request.set_device_type("cpu");
  request.set_host("trainer");
  return request;
}

TestUpload SampleUpload(int64_t upload_id, const v1::SamplingRequest& request, int64_t step, float gram_value) {
  TestUpload upload;
  upload.begin.set_upload_id(upload_id);
  v1::SampleHeader* header = upload.begin.mutable_sample();
  header->set_module(request.module());
  header->set_first_module(request.first_module());
  header->set_request_version(request.version());
  header->set_step(step);
  AddTensor("x", {request.batch_size(), 4}, 0.5f, &upload);
  AddTensor("gram", {request.batch_size(), request.batch_size()}, gram_value, &upload);
  return upload;
}

TestUpload SnapshotUpload(int64_t upload_id, const v1::SnapshotRequest& request, int module, int64_t step) {
  TestUpload upload;
  upload.begin.set_upload_id(upload_id);
  v1::SnapshotHeader* header = upload.begin.mutable_snapshot();
  header->set_module(module);
  header->set_version(request.version());
  header->set_step(step);
  AddTensor("w", {4}, 0.25f, &upload);
  return upload;
}

TestUpload EmptySnapshot(int64_t upload_id, const v1::SnapshotRequest& request, int64_t step) {
  TestUpload upload = SnapshotUpload(upload_id, request, request.module(), step);
  upload.begin.clear_tensors();
  upload.bytes.clear();
  return upload;
}

v1::Reading ReadingFor(int64_t upload_id, const v1::SamplingRequest& request, int64_t step, double plasticity) {
  v1::Reading reading;
  reading.set_upload_id(upload_id);
  reading.set_module(request.module());
  reading.set_request_version(request.version());
  reading.set_step(step);
  reading.set_plasticity(plasticity);
  return reading;
}

void MakeLocal(v1::RegisterJobRequest* request) {
  for (int i = 0; i + 1 < request->modules_size(); ++i) {
    request->mutable_modules(i)->clear_graph();
    request->mutable_modules(i)->set_local_reference(true);
  }
}

std::vector<v1::WorkerMessage> MessagesOf(const TestUpload& upload, size_t chunk) {
  std::vector<v1::WorkerMessage> messages(1);
  *messages[0].mutable_upload_begin() = upload.begin;
  for (size_t offset = 0; offset < upload.bytes.size(); offset += chunk) {
    v1::UploadChunk* part = messages.emplace_back().mutable_upload_chunk();
    part->set_upload_id(upload.begin.upload_id());
    part->set_offset(static_cast<int64_t>(offset));
    part->set_data(upload.bytes.substr(offset, chunk));
  }
  return messages;
}

}  // namespace egeria::testing
