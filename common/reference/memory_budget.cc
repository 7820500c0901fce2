#include "common/reference/memory_budget.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

namespace egeria::reference {

struct MemoryBudget::Ledger {
  explicit Ledger(size_t limit) : limit(limit) {}
  const size_t limit;
  std::atomic<size_t> live{0};
  std::atomic<size_t> peak{0};
};

namespace {

thread_local std::shared_ptr<MemoryBudget::Ledger> current_ledger;

// Lies before each block. 64 bytes, so that blocks keep torch's alignment.
struct alignas(64) Header {
  size_t bytes = 0;
  std::shared_ptr<MemoryBudget::Ledger> ledger;
};
static_assert(sizeof(Header) == 64);

void Free(void* data) {
  if (data == nullptr) return;
  Header* header = static_cast<Header*>(data) - 1;
  if (header->ledger != nullptr) header->ledger->live -= header->bytes;
  header->~Header();
  c10::free_cpu(header);
}

class BudgetAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &Free, c10::Device(c10::kCPU)};
    if (bytes > std::numeric_limits<size_t>::max() / 2) throw GraphTooLarge("a tensor of absurd size");
    const std::shared_ptr<MemoryBudget::Ledger>& ledger = current_ledger;
    if (ledger != nullptr) Charge(*ledger, bytes);
    void* block = nullptr;
    try {
      block = c10::alloc_cpu(bytes + sizeof(Header));
    } catch (...) {
      if (ledger != nullptr) ledger->live -= bytes;
      throw;
    }
    auto* header = new (block) Header{bytes, ledger};
    return {header + 1, header + 1, &Free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void Charge(MemoryBudget::Ledger& ledger, size_t bytes) {
    const size_t live = ledger.live.fetch_add(bytes) + bytes;
    if (live > ledger.limit) {
      ledger.live -= bytes;
      throw GraphTooLarge(
          absl::StrCat("a tensor of ", bytes, " bytes on top of ", live - bytes, ", at most ", ledger.limit));
    }
    size_t peak = ledger.peak.load();
    while (live > peak && !ledger.peak.compare_exchange_weak(peak, live)) {
    }
  }
};

void InstallOnce() {
  // Never destroyed: tensors may outlive every scope, and static objects, too.
  alignas(BudgetAllocator) static std::byte storage[sizeof(BudgetAllocator)];
  static const bool installed = [] {
    c10::SetCPUAllocator(new (storage) BudgetAllocator, 1);  // over torch's default, 0
    return true;
  }();
  (void)installed;
}

}  // namespace

MemoryBudget::MemoryBudget(size_t bytes) : ledger_(std::make_shared<Ledger>(bytes)) {
  InstallOnce();
  outer_ = std::exchange(current_ledger, ledger_);
}

MemoryBudget::~MemoryBudget() { current_ledger = std::move(outer_); }

size_t MemoryBudget::live() const { return ledger_->live; }
size_t MemoryBudget::peak() const { return ledger_->peak; }

}  // namespace egeria::reference
