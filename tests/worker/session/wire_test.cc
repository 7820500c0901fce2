#include "worker/session/wire.h"

#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/session/host_copier.h"

namespace egeria::worker {
namespace {

TEST(Wire, CopiesATensorOfAnyStridesRowByRow) {
  const at::Tensor tensor = at::arange(6, at::kFloat).view({2, 3}).t();
  const absl::StatusOr<WireTensor> wire = ToWire("x", tensor);
  ASSERT_TRUE(wire.ok());
  EXPECT_EQ(wire->spec, (TensorSpec{"x", DataType::kFloat32, {3, 2}}));
  const float expected[] = {0, 3, 1, 4, 2, 5};
  ASSERT_EQ(wire->size(), sizeof(expected));
  EXPECT_EQ(std::memcmp(wire->data(), expected, sizeof(expected)), 0);
}

TEST(Wire, RefusesATypeThatTheWireHasNot) {
  EXPECT_THAT(std::string(ToWire("z", at::zeros({1}, at::kComplexFloat)).status().message()),
              ::testing::HasSubstr("[BAD_DTYPE]"));
}

TEST(Wire, RefusesATensorWithoutValues) {
  const at::Tensor meta = at::empty({1}, at::TensorOptions().device(at::kMeta));
  EXPECT_THAT(std::string(ToWire("m", meta).status().message()), ::testing::HasSubstr("[NO_VALUES]"));
  EXPECT_FALSE(HasValues(at::Tensor()));
  HostCopier copier(c10::kCPU);
  EXPECT_FALSE(copier.Copy({{"m", meta}}, [](std::vector<WireTensor>) { ADD_FAILURE(); }));
}

TEST(HostCopier, HandsOnAtOnceOnTheCpu) {
  HostCopier copier(c10::kCPU);
  std::vector<std::string> names;
  EXPECT_TRUE(copier.Copy({{"a", at::ones({2})}, {"b", at::ones({3})}}, [&](std::vector<WireTensor> tensors) {
    for (const WireTensor& tensor : tensors) names.push_back(tensor.spec.name);
  }));
  EXPECT_THAT(names, ::testing::ElementsAre("a", "b"));
}

TEST(HostCopier, CopiesWhatATensorIsAtTheCall) {
  HostCopier copier(c10::kCPU);
  at::Tensor tensor = at::ones({1});
  WireTensor copied;
  EXPECT_TRUE(copier.Copy({{"a", tensor}}, [&](std::vector<WireTensor> tensors) { copied = tensors[0]; }));
  tensor.fill_(2);
  float value = 0;
  std::memcpy(&value, copied.data(), sizeof(value));
  EXPECT_EQ(value, 1.0f);
}

TEST(HostCopier, RefusesATypeThatTheWireHasNot) {
  HostCopier copier(c10::kCPU);
  bool called = false;
  EXPECT_FALSE(
      copier.Copy({{"a", at::zeros({1}, at::kComplexFloat)}}, [&](std::vector<WireTensor>) { called = true; }));
  EXPECT_FALSE(called);
}

}  // namespace
}  // namespace egeria::worker
