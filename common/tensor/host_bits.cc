#include "common/tensor/host_bits.h"

#include "ATen/ops/tensor.h"

namespace egeria {
namespace {

// Views of one element size are there for any strides; copies of integers for any type and any device.
at::ScalarType IntegerOfSize(size_t bytes) {
  switch (bytes) {
    case 1: return at::kByte;
    case 2: return at::kShort;
    case 4: return at::kInt;
    case 8: return at::kLong;
    default: return at::kComplexDouble;
  }
}

void AddParts(const at::Tensor& tensor, std::vector<at::Tensor>* parts);

void AddQuantized(const at::Tensor& tensor, std::vector<at::Tensor>* parts) {
  AddParts(tensor.int_repr(), parts);
  const at::QScheme scheme = tensor.qscheme();
  if (scheme == at::kPerTensorAffine || scheme == at::kPerTensorSymmetric) {
    parts->push_back(at::tensor({tensor.q_scale(), static_cast<double>(tensor.q_zero_point())}, at::kDouble));
  } else {
    AddParts(tensor.q_per_channel_scales(), parts);
    AddParts(tensor.q_per_channel_zero_points(), parts);
  }
}

void AddParts(const at::Tensor& tensor, std::vector<at::Tensor>* parts) {
  if (tensor.is_meta()) return;
  if (tensor.is_quantized()) {
    AddQuantized(tensor, parts);
    return;
  }
  switch (tensor.layout()) {
    case at::kSparse:
      AddParts(tensor._indices(), parts);
      AddParts(tensor._values(), parts);
      return;
    case at::kSparseCsr:
    case at::kSparseBsr:
      AddParts(tensor.crow_indices(), parts);
      AddParts(tensor.col_indices(), parts);
      AddParts(tensor.values(), parts);
      return;
    case at::kSparseCsc:
    case at::kSparseBsc:
      AddParts(tensor.ccol_indices(), parts);
      AddParts(tensor.row_indices(), parts);
      AddParts(tensor.values(), parts);
      return;
    case at::kMkldnn: AddParts(tensor.to_dense(), parts); return;
    default: break;
  }
  const at::Tensor plain = tensor.resolve_conj().resolve_neg();
  parts->push_back(plain.view(IntegerOfSize(plain.element_size())).to(at::kCPU).contiguous());
}

}  // namespace

std::vector<at::Tensor> HostBits(const at::Tensor& tensor) {
  std::vector<at::Tensor> parts;
  AddParts(tensor.detach(), &parts);
  return parts;
}

}  // namespace egeria
