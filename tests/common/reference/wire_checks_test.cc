#include "common/reference/wire_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

namespace egeria::reference {
namespace {

using ::testing::HasSubstr;

WireTensor Floats(const std::string& name, std::vector<int64_t> shape, float value = 1) {
  int64_t count = 1;
  for (int64_t dimension : shape) count *= dimension;
  const std::vector<float> values(count, value);
  return MakeWireTensor({name, DataType::kFloat32, std::move(shape)}, values.data());
}

template <typename Bits>
WireTensor Raw(DataType dtype, std::vector<Bits> bits) {
  return MakeWireTensor({"t", dtype, {static_cast<int64_t>(bits.size())}}, bits.data());
}

void ExpectNamed(const absl::Status& status, const std::string& name) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("[" + name + "]"));
}

const std::vector<TensorSpec> kInputs = {{"x", DataType::kFloat32, {-1, 3}}, {"y", DataType::kFloat32, {-1, 2}}};

TEST(IsFinite, LooksAtEveryFloatingPointType) {
  EXPECT_TRUE(IsFinite(Raw<uint32_t>(DataType::kFloat32, {0x7f7fffff, 0x80000001, 0})));
  EXPECT_FALSE(IsFinite(Raw<uint32_t>(DataType::kFloat32, {0, 0xff800000})));
  EXPECT_FALSE(IsFinite(Raw<uint32_t>(DataType::kFloat32, {0, 0x7fc00001})));
  EXPECT_TRUE(IsFinite(Raw<uint64_t>(DataType::kFloat64, {0x7fefffffffffffff})));
  EXPECT_FALSE(IsFinite(Raw<uint64_t>(DataType::kFloat64, {0x7ff0000000000000})));
  EXPECT_TRUE(IsFinite(Raw<uint16_t>(DataType::kFloat16, {0x7bff})));
  EXPECT_FALSE(IsFinite(Raw<uint16_t>(DataType::kFloat16, {0x7c00})));
  EXPECT_TRUE(IsFinite(Raw<uint16_t>(DataType::kBFloat16, {0x7f7f})));
  EXPECT_FALSE(IsFinite(Raw<uint16_t>(DataType::kBFloat16, {0xff80})));
  EXPECT_TRUE(IsFinite(Raw<uint32_t>(DataType::kInt32, {0x7f800000})));
}

TEST(CheckSample, AcceptsInputsAndTheirGramMatrix) {
  EXPECT_TRUE(CheckSample(kInputs, {Floats("x", {4, 3}), Floats("y", {4, 2}), Floats("g", {4, 4})}).ok());
}

TEST(CheckSample, RefusesWhatDoesNotFit) {
  const WireTensor x = Floats("x", {4, 3}), y = Floats("y", {4, 2}), gram = Floats("g", {4, 4});
  ExpectNamed(CheckSample(kInputs, {}), "BAD_SHAPE");
  ExpectNamed(CheckSample(kInputs, {x, y}), "BAD_SHAPE");
  ExpectNamed(CheckSample(kInputs, {x, y, gram, gram}), "BAD_SHAPE");
  ExpectNamed(CheckSample(kInputs, {Floats("x", {4, 4}), y, gram}), "BAD_SHAPE");
  ExpectNamed(CheckSample(kInputs, {Floats("x", {3, 3}), y, gram}), "BAD_SHAPE");
  ExpectNamed(CheckSample(kInputs, {x, y, Floats("g", {4, 5})}), "BAD_SHAPE");
  ExpectNamed(CheckSample(kInputs, {x, y, Floats("g", {16})}), "BAD_SHAPE");
  ExpectNamed(CheckSample(kInputs, {Floats("x", {1, 3}), Floats("y", {1, 2}), Floats("g", {1, 1})}), "BAD_SHAPE");
  ExpectNamed(CheckSample(kInputs, {Floats("x", {5000, 3}), Floats("y", {5000, 2}), gram}), "BAD_SHAPE");
  WireTensor wrong = x;
  wrong.spec.dtype = DataType::kInt32;
  ExpectNamed(CheckSample(kInputs, {wrong, y, gram}), "BAD_DTYPE");
  wrong = gram;
  wrong.spec.dtype = DataType::kInt32;
  ExpectNamed(CheckSample(kInputs, {x, y, wrong}), "BAD_DTYPE");
}

TEST(CheckSample, AcceptsTheOutputItselfOfAnyWidth) {
  constexpr auto kNorm = plasticity::ActivationMetric::kActivationNorm;
  const WireTensor x = Floats("x", {4, 3}), y = Floats("y", {4, 2});
  EXPECT_TRUE(CheckSample(kInputs, {x, y, Floats("output", {4, 7})}, kNorm).ok());
  ExpectNamed(CheckSample(kInputs, {x, y, Floats("output", {3, 7})}, kNorm), "BAD_SHAPE");
  ExpectNamed(CheckSample(kInputs, {x, y, Floats("output", {28})}, kNorm), "BAD_SHAPE");
  ExpectNamed(CheckSample(kInputs, {x, y, Floats("output", {4, 7}, std::nanf(""))}, kNorm), "SAMPLE_NOT_FINITE");
}

TEST(CheckSample, RefusesTruncatedTensors) {
  WireTensor x = Floats("x", {4, 3});
  x = MakeWireTensor(x.spec, std::vector<std::byte>(47));
  ExpectNamed(CheckSample(kInputs, {x, Floats("y", {4, 2}), Floats("g", {4, 4})}), "BAD_SHAPE");
  x.bytes = {};
  ExpectNamed(CheckSample(kInputs, {x, Floats("y", {4, 2}), Floats("g", {4, 4})}), "BAD_SHAPE");
}

TEST(CheckSample, RefusesWhatIsNotFinite) {
  const float nan = std::nanf("");
  const float inf = std::numeric_limits<float>::infinity();
  ExpectNamed(CheckSample(kInputs, {Floats("x", {4, 3}, nan), Floats("y", {4, 2}), Floats("g", {4, 4})}),
              "SAMPLE_NOT_FINITE");
  ExpectNamed(CheckSample(kInputs, {Floats("x", {4, 3}), Floats("y", {4, 2}), Floats("g", {4, 4}, inf)}),
              "SAMPLE_NOT_FINITE");
}

TEST(MatchWeights, OrdersByNameAndDropsWhatIsNotNamed) {
  const auto matched = MatchWeights({{"b", DataType::kFloat32, {2}}, {"a", DataType::kFloat32, {3}}},
                                    {Floats("a", {3}), Floats("z", {9}), Floats("b", {2})});
  ASSERT_TRUE(matched.ok()) << matched.status();
  ASSERT_EQ(matched->size(), 2u);
  EXPECT_EQ((*matched)[0].spec.name, "b");
  EXPECT_EQ((*matched)[1].spec.name, "a");
}

TEST(MatchWeights, RefusesIncompleteOrWrongSnapshots) {
  const std::vector<TensorSpec> specs = {{"a", DataType::kFloat32, {3}}};
  ExpectNamed(MatchWeights(specs, {}).status(), "MISSING_WEIGHT");
  ExpectNamed(MatchWeights(specs, {Floats("b", {3})}).status(), "MISSING_WEIGHT");
  ExpectNamed(MatchWeights(specs, {Floats("a", {4})}).status(), "BAD_SHAPE");
  ExpectNamed(MatchWeights(specs, {Floats("a", {3}, std::nanf(""))}).status(), "SNAPSHOT_NOT_FINITE");
  WireTensor wrong = Floats("a", {3});
  wrong.spec.dtype = DataType::kInt32;
  ExpectNamed(MatchWeights(specs, {wrong}).status(), "BAD_DTYPE");
  wrong = Floats("a", {3});
  wrong = MakeWireTensor(wrong.spec, std::vector<std::byte>(11));
  ExpectNamed(MatchWeights(specs, {wrong}).status(), "BAD_SHAPE");
}

}  // namespace
}  // namespace egeria::reference
