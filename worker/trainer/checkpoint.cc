#include "worker/trainer/checkpoint.h"

#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <mutex>
#include <utility>

#include "ATen/Context.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/full.h"
#include "ATen/ops/tensor.h"
#include "common/base/status.h"
#include "torch/csrc/jit/serialization/pickle.h"
#include "worker/commit/torch_status.h"

namespace egeria::trainer {
namespace {

using Dictionary = c10::Dict<std::string, at::Tensor>;

constexpr int64_t kVersion = 1;
constexpr const char* kTensorPrefix = "tensor/";
constexpr const char* kRandomPrefix = "random/";

absl::Status Failed(const std::exception& error) {
  return NamedError(absl::StatusCode::kUnavailable, "CHECKPOINT_FAILED", worker::MessageOf(error));
}

absl::Status Bad(const std::string& message) {
  return NamedError(absl::StatusCode::kInvalidArgument, "BAD_CHECKPOINT", message,
                    ": remove the file to start anew, or take an older copy");
}

at::Tensor BytesOf(const std::string& text) {
  at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

std::string TextOf(const at::Tensor& bytes) {
  const at::Tensor dense = bytes.contiguous();
  return std::string(static_cast<const char*>(dense.const_data_ptr()), static_cast<size_t>(dense.nbytes()));
}

at::Generator GeneratorOf(c10::Device device) { return at::globalContext().defaultGenerator(device); }

absl::Status CopyInto(const std::map<std::string, at::Tensor>& tensors, const std::string& name,
                      const at::Tensor& target) {
  const auto found = tensors.find(name);
  if (found == tensors.end() || found->second.sizes() != target.sizes() ||
      found->second.scalar_type() != target.scalar_type()) {
    return NamedError(absl::StatusCode::kInvalidArgument, "CHECKPOINT_MISMATCH", "'", name,
                      "' is missing or of another shape: the checkpoint is of another model");
  }
  target.detach().copy_(found->second);
  return absl::OkStatus();
}

}  // namespace

std::map<std::string, at::Tensor> TensorsOf(Replica* replica) {
  std::map<std::string, at::Tensor> tensors;
  auto host = [](const at::Tensor& tensor) {
    return tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
  };
  for (const worker::LayerModule& module : replica->modules()) {
    for (const worker::NamedTensor& parameter : module.parameters()) {
      tensors["parameter/" + parameter.name] = host(parameter.tensor);
      const at::Tensor momentum = replica->Momentum(parameter.tensor);
      if (momentum.defined()) tensors["momentum/" + parameter.name] = host(momentum);
    }
    for (const worker::NamedTensor& buffer : module.buffers()) tensors["buffer/" + buffer.name] = host(buffer.tensor);
  }
  return tensors;
}

absl::Status RestoreTensors(const std::map<std::string, at::Tensor>& tensors, Replica* replica) {
  for (const worker::LayerModule& module : replica->modules()) {
    for (const worker::NamedTensor& parameter : module.parameters()) {
      EGERIA_RETURN_IF_ERROR(CopyInto(tensors, "parameter/" + parameter.name, parameter.tensor));
      const auto momentum = tensors.find("momentum/" + parameter.name);
      if (momentum == tensors.end()) {
        if (replica->Momentum(parameter.tensor).defined()) replica->SetMomentum(parameter.tensor, {});
        continue;
      }
      at::Tensor restored = at::empty_like(parameter.tensor.detach());
      EGERIA_RETURN_IF_ERROR(CopyInto(tensors, momentum->first, restored));
      replica->SetMomentum(parameter.tensor, restored);
    }
    for (const worker::NamedTensor& buffer : module.buffers()) {
      EGERIA_RETURN_IF_ERROR(CopyInto(tensors, "buffer/" + buffer.name, buffer.tensor));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<at::Tensor>> GatherRandomStates(c10::Device device, const worker::ProcessGroupPtr& group) {
  try {
    at::Generator generator = GeneratorOf(device);
    at::Tensor own;
    {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      own = generator.get_state();
    }
    if (group == nullptr) return std::vector<at::Tensor>{own};
    std::vector<at::Tensor> inputs = {own};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int rank = 0; rank < group->getSize(); ++rank) outputs[0].push_back(at::empty_like(own));
    group->allgather(outputs, inputs)->wait();
    return outputs[0];
  } catch (const std::exception& error) {
    return Failed(error);
  }
}

void RestoreRandomState(const at::Tensor& state, c10::Device device) {
  at::Generator generator = GeneratorOf(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

Checkpoint ForOtherRanks(Checkpoint checkpoint, int before, int now) {
  const auto step_of = [before, now](int64_t step) { return step * before / now; };
  const double part = static_cast<double>(before) / now;
  checkpoint.step = step_of(checkpoint.step);
  checkpoint.frozen_share_steps *= part;
  if (checkpoint.learning_rate_sum.has_value()) *checkpoint.learning_rate_sum *= part;
  for (size_t i = 0; i < checkpoint.switches.size(); i += 5) checkpoint.switches[i] = step_of(checkpoint.switches[i]);
  return checkpoint;
}

absl::StatusOr<std::string> Encode(const Checkpoint& checkpoint) {
  try {
    Dictionary dictionary;
    dictionary.insert("version", at::full({1}, kVersion, at::kLong));
    dictionary.insert("run", BytesOf(checkpoint.run));
    dictionary.insert(
        "counters",
        at::tensor({checkpoint.step, int64_t{checkpoint.frozen_prefix}, checkpoint.applied_plan}, at::kLong));
    dictionary.insert(
        "sums",
        at::tensor({checkpoint.seconds, checkpoint.frozen_share_steps, checkpoint.frozen_share_seconds}, at::kDouble));
    if (checkpoint.learning_rate_sum.has_value()) {
      dictionary.insert("learning_rate_sum", at::full({1}, *checkpoint.learning_rate_sum, at::kDouble));
    }
    dictionary.insert("cache_job", BytesOf(checkpoint.cache_job));
    dictionary.insert("reinvested_saving", at::full({1}, checkpoint.reinvested_saving, at::kDouble));
    dictionary.insert("switches", at::tensor(checkpoint.switches, at::kLong));
    for (size_t rank = 0; rank < checkpoint.random_states.size(); ++rank) {
      dictionary.insert(kRandomPrefix + std::to_string(rank), checkpoint.random_states[rank]);
    }
    for (const auto& [name, tensor] : checkpoint.tensors) dictionary.insert(kTensorPrefix + name, tensor);
    const std::vector<char> bytes = torch::jit::pickle_save(c10::IValue(dictionary));
    return std::string(bytes.begin(), bytes.end());
  } catch (const std::exception& error) {
    return Failed(error);
  }
}

absl::StatusOr<Checkpoint> Decode(const std::string& bytes) {
  try {
    const c10::IValue value = torch::jit::pickle_load(std::vector<char>(bytes.begin(), bytes.end()));
    std::map<std::string, at::Tensor> all;
    for (const auto& entry : value.toGenericDict()) all[entry.key().toStringRef()] = entry.value().toTensor();
    for (const char* name : {"version", "run", "counters", "sums", "switches", "random/0"}) {
      if (!all.contains(name)) return Bad(absl::StrCat("it has no '", name, "'"));
    }
    if (all["version"].item<int64_t>() != kVersion) return Bad("it is of another version");
    if (all["counters"].numel() != 3 || all["sums"].numel() != 3 || all["switches"].numel() % 5 != 0) {
      return Bad("its counters are damaged");
    }
    Checkpoint checkpoint;
    checkpoint.run = TextOf(all["run"]);
    const int64_t* const counters = all["counters"].const_data_ptr<int64_t>();
    checkpoint.step = counters[0];
    checkpoint.frozen_prefix = static_cast<int>(counters[1]);
    checkpoint.applied_plan = counters[2];
    const double* const sums = all["sums"].const_data_ptr<double>();
    checkpoint.seconds = sums[0];
    checkpoint.frozen_share_steps = sums[1];
    checkpoint.frozen_share_seconds = sums[2];
    if (all.contains("learning_rate_sum")) checkpoint.learning_rate_sum = all["learning_rate_sum"].item<double>();
    if (all.contains("cache_job")) checkpoint.cache_job = TextOf(all["cache_job"]);
    if (all.contains("reinvested_saving")) checkpoint.reinvested_saving = all["reinvested_saving"].item<double>();
    const at::Tensor& switches = all["switches"];
    if (switches.numel() > 0) {
      const int64_t* const data = switches.const_data_ptr<int64_t>();
      checkpoint.switches.assign(data, data + switches.numel());
    }
    for (int rank = 0; all.contains(kRandomPrefix + std::to_string(rank)); ++rank) {
      checkpoint.random_states.push_back(all[kRandomPrefix + std::to_string(rank)]);
    }
    for (auto& [name, tensor] : all) {
      if (name.starts_with(kTensorPrefix)) checkpoint.tensors[name.substr(std::strlen(kTensorPrefix))] = tensor;
    }
    return checkpoint;
  } catch (const std::exception& error) {
    // The first sentence says it. The rest is about torch's own files.
    const std::string text = worker::MessageOf(error);
    return Bad("not a whole checkpoint (" + text.substr(0, text.find_first_of(".\n")) + ")");
  }
}

namespace {

// Returns on all ranks what rank 0 has: bytes, or nothing. It is a collective. Errors: UNAVAILABLE [CHECKPOINT_FAILED].
absl::StatusOr<std::optional<std::string>> ShareOfRankZero(std::optional<std::string> own, int rank,
                                                           const worker::ProcessGroupPtr& group) {
  if (group == nullptr) return own;
  try {
    std::vector<at::Tensor> size = {
        at::full({1}, own.has_value() ? static_cast<int64_t>(own->size()) : int64_t{-1}, at::kLong)};
    group->broadcast(size)->wait();
    const int64_t count = size[0].item<int64_t>();
    if (count < 0) return std::nullopt;
    if (rank != 0) own.emplace(static_cast<size_t>(count), '\0');
    if (count > 0) {
      std::vector<at::Tensor> content = {BytesOf(*own)};
      group->broadcast(content)->wait();
      if (rank != 0) own = TextOf(content[0]);
    }
  } catch (const std::exception& error) {
    return Failed(error);
  }
  return own;
}

}  // namespace

absl::StatusOr<std::optional<std::string>> ReadOnRankZero(const std::string& path, int rank,
                                                          const worker::ProcessGroupPtr& group) {
  std::optional<std::string> bytes;
  if (rank == 0) {
    std::ifstream in(path, std::ios::binary);
    if (in) bytes.emplace(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return ShareOfRankZero(std::move(bytes), rank, group);
}

absl::Status TakeFromRankZero(Replica* replica, int rank, const worker::ProcessGroupPtr& group) {
  std::optional<std::string> bytes;
  if (rank == 0) {
    Checkpoint checkpoint;
    checkpoint.tensors = TensorsOf(replica);
    EGERIA_ASSIGN_OR_RETURN(bytes, Encode(checkpoint));
  }
  EGERIA_ASSIGN_OR_RETURN(bytes, ShareOfRankZero(std::move(bytes), rank, group));
  EGERIA_ASSIGN_OR_RETURN(const Checkpoint taken, Decode(bytes.value_or("")));
  return rank == 0 ? absl::OkStatus() : RestoreTensors(taken.tensors, replica);
}

}  // namespace egeria::trainer
