#ifndef EGERIA_WORKER_SESSION_ROW_PROOF_H_
#define EGERIA_WORKER_SESSION_ROW_PROOF_H_

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"

// Whether a function of batches is one of single samples, to the bit: shown on a real batch, since it depends on which
// kernels a library chooses for a shape, and on the same with noise, in which roundings show.
namespace egeria::worker {

// b x ... in, b x ... out.
using BatchFunction = absl::FunctionRef<at::Tensor(const at::Tensor& input)>;

// True if the tensors are equal in type, shape and bits.
bool SameBits(const at::Tensor& a, const at::Tensor& b);

// Whether in batches as large as `input`, of which `output` was computed, neither a sample's place matters nor which
// others there are.
bool RowsAreIndependent(BatchFunction compute, const at::Tensor& input, const at::Tensor& output);

// Whether `size` samples alone give what they give in the whole batch.
bool RowsComputeAlone(BatchFunction compute, const at::Tensor& input, const at::Tensor& output, int64_t size);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_ROW_PROOF_H_
