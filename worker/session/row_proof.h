#ifndef EGERIA_WORKER_SESSION_ROW_PROOF_H_
#define EGERIA_WORKER_SESSION_ROW_PROOF_H_

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"

// A row proof shows that a function of batches is one of single samples, to the bit. It is made on a real batch, since
// it depends on which kernels a library chooses for a shape, and on samples of it with noise, in which roundings show.
namespace egeria::worker {

using Tensors = std::vector<at::Tensor>;
using RowNumbers = std::vector<int64_t>;

// Computes b' x ... tensors of some samples of a batch, which are given by their numbers and may repeat.
using RowsFunction = absl::FunctionRef<Tensors(const RowNumbers& rows)>;
// Says whether the function may be expected to compute these samples as it computes them in the whole batch. Some
// models ask whether a mask is set throughout, and compute otherwise where it is not.
using RowsPredicate = absl::FunctionRef<bool(const RowNumbers& rows)>;
bool AnyRows(const RowNumbers& rows);

// Returns whether the tensors are equal in type, shape and bits.
bool SameBits(const at::Tensor& a, const at::Tensor& b);
// Returns whether `some` has as many tensors as `whole`, and each holds those rows of its counterpart, to the bit.
bool SameRows(const Tensors& some, const Tensors& whole, const RowNumbers& rows);

// Returns the batch with noise as large as each tensor's own spread: a real input may be so regular (a blank image)
// that roundings do not show. Tensors that are not floating-point and finite stay; where all stay, none is returned.
Tensors Disturbed(const Tensors& batch);

// Shows that neither a sample's place matters nor which others there are, in batches as large as the one of which
// `whole` was computed, in two or three more: each of its samples is in one of them, in another place and in other
// company. `noisy` samples more are to be had behind those of the batch, its last ones with noise, which are in two of
// them: none, NoisyRows(), or all where it matters which batches are comparable.
//
// Returns what is computed for all of these samples, those with noise behind the others; nothing where it is not so.
// Exceptions of `compute` pass through.
Tensors ProveRows(RowsFunction compute, const Tensors& whole, int64_t noisy, RowsPredicate comparable = AnyRows);
// Returns with how many samples of a batch with noise enough is compared: half of them, or all.
int64_t NoisyRows(const Tensors& whole);
// Returns the rows of a batch of as many samples, of which every other one has noise.
RowNumbers AlternatingRows(int64_t batch);
// Returns whether `size` samples alone give what they give in the whole batch. They do not where `compute` throws.
bool SameAlone(RowsFunction compute, const Tensors& whole, int64_t size, RowsPredicate comparable = AnyRows);
// Returns the numbers of samples, ascending, that are tried alone in the place of the missing samples of such a batch.
// They are powers of two, so that few have to be proven, and three quarters of the batch.
std::vector<int64_t> SizesAlone(int64_t batch);

// These prove the same of functions of one tensor, on samples of `input` and of Disturbed(input).
using BatchFunction = absl::FunctionRef<at::Tensor(const at::Tensor& input)>;
bool RowsAreIndependent(BatchFunction compute, const at::Tensor& input, const at::Tensor& output);
bool RowsComputeAlone(BatchFunction compute, const at::Tensor& input, const at::Tensor& output, int64_t size);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_SESSION_ROW_PROOF_H_
