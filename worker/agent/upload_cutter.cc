#include "worker/agent/upload_cutter.h"

#include <algorithm>
#include <string>

#include "common/graph/graph_proto.h"
#include "common/rpc/channel.h"

namespace egeria::worker {
namespace {

int32_t Number(ModuleIndex module) { return static_cast<int32_t>(module.value()); }

// The first message of each kind of upload. Tensors are announced by UploadBegin.

void FillBegin(const Sample& sample, int64_t upload_id, v1::WorkerMessage* message) {
  v1::UploadBegin* begin = message->mutable_upload_begin();
  begin->set_upload_id(upload_id);
  v1::SampleHeader* header = begin->mutable_sample();
  header->set_module(Number(sample.module));
  header->set_first_module(Number(sample.first_module));
  header->set_step(sample.step);
  header->set_request_version(sample.request_version);
  header->set_metric(sample.metric == ActivationMetric::kSpLoss ? v1::ACTIVATION_METRIC_SP
                                                                : v1::ACTIVATION_METRIC_NORM);
  for (const WireTensor& tensor : sample.tensors) ToProto(tensor.spec, begin->add_tensors());
}

void FillBegin(const Snapshot& snapshot, int64_t upload_id, v1::WorkerMessage* message) {
  v1::UploadBegin* begin = message->mutable_upload_begin();
  begin->set_upload_id(upload_id);
  v1::SnapshotHeader* header = begin->mutable_snapshot();
  header->set_module(Number(snapshot.module));
  header->set_step(snapshot.step);
  header->set_version(snapshot.version);
  for (const WireTensor& tensor : snapshot.tensors) ToProto(tensor.spec, begin->add_tensors());
}

void FillBegin(const Reading& reading, int64_t upload_id, v1::WorkerMessage* message) {
  v1::Reading* out = message->mutable_reading();
  out->set_upload_id(upload_id);
  out->set_module(Number(reading.module));
  out->set_step(reading.step);
  out->set_request_version(reading.request_version);
  out->set_plasticity(reading.plasticity);
}

void FillBegin(const GradientReading& reading, int64_t upload_id, v1::WorkerMessage* message) {
  v1::GradientReading* out = message->mutable_gradients();
  out->set_upload_id(upload_id);
  out->set_step(reading.step);
  out->set_request_version(reading.request_version);
  out->set_first_module(Number(reading.first_module));
  out->set_parts(reading.parts);
  out->mutable_mean_of_squares()->Assign(reading.mean_of_squares.begin(), reading.mean_of_squares.end());
  out->mutable_square_of_mean()->Assign(reading.square_of_mean.begin(), reading.square_of_mean.end());
  out->set_samples(reading.samples);
  out->mutable_progress()->Assign(reading.progress.begin(), reading.progress.end());
}

}  // namespace

bool UploadCutter::Next(v1::WorkerMessage* message) {
  message->Clear();
  if (!begun_) {
    begun_ = true;
    std::visit([&](const auto& content) { FillBegin(content, upload_id_, message); }, *upload_);
    return true;
  }
  if (sent_ == bytes_) return false;

  v1::UploadChunk* chunk = message->mutable_upload_chunk();
  chunk->set_upload_id(upload_id_);
  chunk->set_offset(static_cast<int64_t>(sent_));
  std::string* data = chunk->mutable_data();
  data->reserve(std::min(rpc::kMaxChunkBytes, bytes_ - sent_));
  const std::vector<WireTensor>& tensors = TensorsOf(*upload_);
  while (data->size() < rpc::kMaxChunkBytes && tensor_ < tensors.size()) {
    const WireTensor& tensor = tensors[tensor_];
    const size_t take = std::min(rpc::kMaxChunkBytes - data->size(), tensor.size() - in_tensor_);
    if (take > 0) data->append(reinterpret_cast<const char*>(tensor.data()) + in_tensor_, take);
    in_tensor_ += take;
    if (in_tensor_ == tensor.size()) {
      ++tensor_;
      in_tensor_ = 0;
    }
  }
  sent_ += data->size();
  return true;
}

}  // namespace egeria::worker
