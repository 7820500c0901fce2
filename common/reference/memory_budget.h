#ifndef EGERIA_COMMON_REFERENCE_MEMORY_BUDGET_H_
#define EGERIA_COMMON_REFERENCE_MEMORY_BUDGET_H_

#include <cstddef>
#include <memory>
#include <stdexcept>

namespace egeria::reference {

// A graph that asks for more than a run may have. An exception, because it must pass through torch.
class GraphTooLarge : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// While it lives, tensors that this thread allocates may hold at most `bytes` together; an allocation beyond
// that throws GraphTooLarge before any memory is taken, also from inside an operator. Tensors that outlive the
// scope no longer count against anyone. Scopes may nest; the inner one counts.
//
// Works by replacing torch's CPU allocator, once per process, by one that adds a 64-byte header to every
// tensor. Allocations on torch's own intra-op threads are not counted (operators allocate on the caller's).
class MemoryBudget {
 public:
  explicit MemoryBudget(size_t bytes);
  ~MemoryBudget();
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Bytes that are held now, and the most that were held at once.
  size_t live() const;
  size_t peak() const;

  struct Ledger;

 private:
  std::shared_ptr<Ledger> ledger_;
  std::shared_ptr<Ledger> outer_;
};

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_MEMORY_BUDGET_H_
