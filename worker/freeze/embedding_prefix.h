#ifndef EGERIA_WORKER_FREEZE_EMBEDDING_PREFIX_H_
#define EGERIA_WORKER_FREEZE_EMBEDDING_PREFIX_H_

#include <cstdint>
#include <vector>

namespace egeria::worker {

class LayerModule;

// The numbers of scalars in the parameters of a layer module.
struct ParameterCounts {
  int64_t all = 0;
  int64_t in_embeddings = 0;
};

// Counts the first layer modules nearly all of whose parameters are rows of embeddings, of which a batch uses a few.
// The last module never counts, as it never freezes. Where embeddings are most of a model they are what it learns, as
// in recommenders, and none counts.
int EmbeddingPrefix(const std::vector<ParameterCounts>& modules);
int EmbeddingPrefix(const std::vector<LayerModule>& modules);

}  // namespace egeria::worker

#endif  // EGERIA_WORKER_FREEZE_EMBEDDING_PREFIX_H_
