#include "common/reference/operator_guards.h"

#include <ATen/core/Tensor.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/reference/memory_budget.h"

namespace egeria::reference {
namespace {

using Arguments = std::vector<c10::IValue>;

// A list's tensors take a few hundred bytes each however small they are.
constexpr int64_t kMaxListLength = 4096;

void LimitList(int64_t length) {
  if (length > kMaxListLength) {
    throw GraphTooLarge(absl::StrCat("a list of ", length, " tensors, at most ", kMaxListLength));
  }
}

int64_t SizeAlong(const c10::IValue& tensor, const c10::IValue& dimension) {
  const at::Tensor& value = tensor.toTensor();
  return value.size(c10::maybe_wrap_dim(dimension.toInt(), value.dim()));
}

void GuardSplit(const Arguments& arguments) {
  const int64_t length = arguments[1].toInt();
  if (length > 0) LimitList(SizeAlong(arguments[0], arguments[2]) / length);
}

void GuardUnbind(const Arguments& arguments) { LimitList(SizeAlong(arguments[0], arguments[1])); }

// A dimension of size 0 gives as many chunks as are asked for.
void GuardChunk(const Arguments& arguments) {
  const int64_t chunks = arguments[1].toInt(), size = SizeAlong(arguments[0], arguments[2]);
  LimitList(size == 0 ? chunks : std::min(chunks, size));
}

// aten::_native_batch_norm_legit_no_training reads as many statistics as the input has channels.
void GuardBatchNorm(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  TORCH_CHECK(input.dim() >= 2, "BatchNorm takes two or more dimensions, not ", input.dim());
  for (int i = 1; i <= 4; ++i) {
    if (arguments[i].isNone()) continue;
    const at::Tensor& statistic = arguments[i].toTensor();
    TORCH_CHECK(statistic.dim() == 1 && statistic.size(0) == input.size(1), "BatchNorm of ", input.size(1),
                " channels got ", statistic.sizes());
  }
}

// The fused attention kernel takes the query's and the key's shapes for those of all.
void GuardAttention(const Arguments& arguments) {
  const at::Tensor &query = arguments[0].toTensor(), &key = arguments[1].toTensor(), &value = arguments[2].toTensor();
  const int64_t rank = query.dim();
  TORCH_CHECK(rank >= 2 && key.dim() == rank && value.dim() == rank, "attention of ", query.sizes(), ", ", key.sizes(),
              " and ", value.sizes());
  for (int64_t i = 0; i + 2 < rank; ++i) {
    TORCH_CHECK(query.size(i) == key.size(i) && key.size(i) == value.size(i), "attention does not broadcast");
  }
  TORCH_CHECK(query.size(-1) == key.size(-1) && key.size(-2) == value.size(-2), "attention of ", query.sizes(), ", ",
              key.sizes(), " and ", value.sizes());
  TORCH_CHECK(query.numel() > 0 && key.numel() > 0 && value.numel() > 0, "attention over nothing");
  if (arguments[3].isNone()) return;
  const at::Tensor& mask = arguments[3].toTensor();
  std::vector<int64_t> full = query.sizes().vec();
  full.back() = key.size(-2);
  TORCH_CHECK(mask.dim() <= rank, "an attention mask of ", mask.sizes());
  for (int64_t i = 1; i <= mask.dim(); ++i) {
    TORCH_CHECK(mask.size(-i) == 1 || mask.size(-i) == full[rank - i], "an attention mask of ", mask.sizes(), " for ",
                at::IntArrayRef(full));
  }
}

}  // namespace

OperatorGuard GuardOf(const std::string& name) {
  static const auto* const guards = new std::map<std::string, OperatorGuard>{
      {"aten::_native_batch_norm_legit_no_training", &GuardBatchNorm},
      {"aten::chunk", &GuardChunk},
      {"aten::scaled_dot_product_attention", &GuardAttention},
      {"aten::split", &GuardSplit},
      {"aten::unbind", &GuardUnbind},
  };
  const auto found = guards->find(name);
  return found == guards->end() ? nullptr : found->second;
}

}  // namespace egeria::reference
