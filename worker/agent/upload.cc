#include "worker/agent/upload.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/graph/graph_proto.h"
#include "common/rpc/channel.h"

namespace egeria::worker {

const std::vector<WireTensor>& Upload::tensors() const {
  static const std::vector<WireTensor>* const kNone = new std::vector<WireTensor>();
  if (const auto* sample = std::get_if<Sample>(&content)) return sample->tensors;
  if (const auto* snapshot = std::get_if<Snapshot>(&content)) return snapshot->tensors;
  return *kNone;
}

absl::StatusOr<Upload> MakeUpload(UploadContent content) {
  Upload upload{std::move(content), 0};
  for (const WireTensor& tensor : upload.tensors()) {
    EGERIA_ASSIGN_OR_RETURN(const size_t expected, ByteSize(tensor.spec));
    if (tensor.size() != expected) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.spec.name, "' holds ", tensor.size(),
                                                     " bytes, and its shape asks for ", expected));
    }
    upload.bytes += expected;
  }
  return upload;
}

bool UploadCutter::Next(v1::WorkerMessage* message) {
  message->Clear();
  if (!begun_) {
    begun_ = true;
    if (const auto* reading = std::get_if<Reading>(&upload_->content)) {
      FillReading(*reading, message->mutable_reading());
    } else if (const auto* gradients = std::get_if<GradientReading>(&upload_->content)) {
      FillGradients(*gradients, message->mutable_gradients());
    } else {
      FillHeader(message->mutable_upload_begin());
    }
    return true;
  }
  if (sent_ == upload_->bytes) return false;

  v1::UploadChunk* chunk = message->mutable_upload_chunk();
  chunk->set_upload_id(upload_id_);
  chunk->set_offset(static_cast<int64_t>(sent_));
  std::string* data = chunk->mutable_data();
  data->reserve(std::min(rpc::kMaxChunkBytes, upload_->bytes - sent_));
  while (data->size() < rpc::kMaxChunkBytes && tensor_ < upload_->tensors().size()) {
    const WireTensor& tensor = upload_->tensors()[tensor_];
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

void UploadCutter::FillReading(const Reading& reading, v1::Reading* message) const {
  message->set_upload_id(upload_id_);
  message->set_module(static_cast<int32_t>(reading.module.value()));
  message->set_step(reading.step);
  message->set_request_version(reading.request_version);
  message->set_plasticity(reading.plasticity);
}

void UploadCutter::FillGradients(const GradientReading& reading, v1::GradientReading* message) const {
  message->set_upload_id(upload_id_);
  message->set_step(reading.step);
  message->set_request_version(reading.request_version);
  message->set_first_module(static_cast<int32_t>(reading.first_module.value()));
  message->set_parts(reading.parts);
  message->mutable_mean_of_squares()->Assign(reading.mean_of_squares.begin(), reading.mean_of_squares.end());
  message->mutable_square_of_mean()->Assign(reading.square_of_mean.begin(), reading.square_of_mean.end());
  message->set_samples(reading.samples);
  message->mutable_progress()->Assign(reading.progress.begin(), reading.progress.end());
}

void UploadCutter::FillHeader(v1::UploadBegin* begin) const {
  begin->set_upload_id(upload_id_);
  if (const auto* sample = std::get_if<Sample>(&upload_->content)) {
    v1::SampleHeader* header = begin->mutable_sample();
    header->set_module(static_cast<int32_t>(sample->module.value()));
    header->set_first_module(static_cast<int32_t>(sample->first_module.value()));
    header->set_step(sample->step);
    header->set_request_version(sample->request_version);
  } else {
    const auto& snapshot = std::get<Snapshot>(upload_->content);
    v1::SnapshotHeader* header = begin->mutable_snapshot();
    header->set_module(static_cast<int32_t>(snapshot.module.value()));
    header->set_step(snapshot.step);
    header->set_version(snapshot.version);
  }
  for (const WireTensor& tensor : upload_->tensors()) ToProto(tensor.spec, begin->add_tensors());
}

}  // namespace egeria::worker
