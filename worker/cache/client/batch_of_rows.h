#ifndef EGERIA_WORKER_CACHE_CLIENT_BATCH_OF_ROWS_H_
#define EGERIA_WORKER_CACHE_CLIENT_BATCH_OF_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "ATen/core/Tensor.h"
#include "worker/cache/entry/entry.h"

namespace egeria::cache {

// Hands out host memory for batches, and hands it out again once nobody else has it: fresh memory costs as much as
// reading into it does. For one thread.
class BatchBuffers {
 public:
  // Memory that an accelerator copies from is pinned.
  void set_pinned(bool pinned) { pinned_ = pinned; }
  // Returns a tensor that holds anything, and that only these buffers share.
  at::Tensor Get(at::IntArrayRef shape, at::ScalarType type);
  void Clear() { spares_.clear(); }

 private:
  bool pinned_ = false;
  std::deque<at::Tensor> spares_;
};

// Puts a batch together from the entries of its samples. For one thread.
class BatchOfRows {
 public:
  // `buffers` must outlive it. The rows of a ragged batch may differ in their first dimension.
  BatchOfRows(BatchBuffers* buffers, size_t samples, bool ragged)
      : buffers_(*buffers), samples_(samples), ragged_(ragged) {}

  // Copies the tensors of a sample. Returns false where they are of another type or shape than those before them.
  bool Add(size_t position, const std::vector<EntryTensor>& entry);

  // Returns dense b x ... tensors; none where nothing was added. Rows that were not added hold anything. CachedBatch
  // explains the lengths. Once.
  std::vector<at::Tensor> Finish(std::vector<std::vector<int64_t>>* lengths);

 private:
  // One tensor of all samples.
  struct Column {
    at::ScalarType type;
    std::vector<int64_t> shape;    // a row's, and the longest one's where they are ragged
    size_t line_bytes = 0;         // a step in the first dimension takes so many
    at::Tensor tensor;             // where rows are not ragged
    std::vector<std::byte> bytes;  // rows as they come
    std::vector<int64_t> lengths;
    std::vector<size_t> begins;
  };

  void MakeColumns(const std::vector<EntryTensor>& entry);
  bool Fits(const std::vector<EntryTensor>& entry) const;
  bool IsRagged(const Column& column) const { return ragged_ && !column.shape.empty(); }
  at::Tensor MakeTensor(const Column& column);

  BatchBuffers& buffers_;
  const size_t samples_;
  const bool ragged_;
  std::vector<Column> columns_;
};

}  // namespace egeria::cache

#endif  // EGERIA_WORKER_CACHE_CLIENT_BATCH_OF_ROWS_H_
