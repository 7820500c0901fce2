#include "common/reference/memory_budget.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace egeria::reference {
namespace {

TEST(MemoryBudget, CountsWhatIsHeld) {
  const MemoryBudget budget(1 << 20);
  at::Tensor a = at::empty({1000});
  EXPECT_EQ(budget.live(), 4000u);
  at::Tensor b = at::empty({500}, at::kDouble);
  EXPECT_EQ(budget.live(), 8000u);
  a = at::Tensor();
  EXPECT_EQ(budget.live(), 4000u);
  EXPECT_EQ(budget.peak(), 8000u);
}

TEST(MemoryBudget, RefusesBeforeItTakesMemory) {
  const MemoryBudget budget(1 << 20);
  EXPECT_THROW(at::empty({int64_t{1} << 50}), GraphTooLarge);
  EXPECT_THROW(at::ones({1 << 19}), GraphTooLarge);
  EXPECT_EQ(budget.live(), 0u);
  EXPECT_NO_THROW(at::ones({1 << 17}));
}

TEST(MemoryBudget, LetsTensorsOutliveIt) {
  at::Tensor survivor;
  {
    const MemoryBudget budget(1 << 20);
    survivor = at::ones({16});
  }
  EXPECT_EQ(survivor.sum().item<float>(), 16);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(survivor.data_ptr()) % 64, 0u);
  survivor = at::Tensor();
  EXPECT_NO_THROW(at::empty({1 << 20}));  // no budget counts here
}

TEST(MemoryBudget, NestsWithTheInnerOneCounting) {
  const MemoryBudget outer(100);
  {
    const MemoryBudget inner(1 << 20);
    EXPECT_NO_THROW(at::empty({1000}));
    EXPECT_EQ(outer.live(), 0u);
  }
  EXPECT_THROW(at::empty({1000}), GraphTooLarge);
}

}  // namespace
}  // namespace egeria::reference
