#include "worker/freeze/embedding_prefix.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/toy_model.h"
#include "torch/nn/modules/embedding.h"
#include "torch/nn/modules/linear.h"

namespace egeria::worker {
namespace {

TEST(EmbeddingPrefix, CountsFrontModulesThatAreNearlyAllRows) {
  EXPECT_EQ(EmbeddingPrefix(std::vector<ParameterCounts>{{100, 99}, {100, 0}, {100, 0}}), 1);
  EXPECT_EQ(EmbeddingPrefix(std::vector<ParameterCounts>{{100, 98}, {100, 0}, {100, 0}}), 0);
  EXPECT_EQ(EmbeddingPrefix(std::vector<ParameterCounts>{{100, 100}, {100, 100}, {100, 0}}), 2);
  EXPECT_EQ(EmbeddingPrefix(std::vector<ParameterCounts>{{100, 0}, {100, 100}, {100, 0}}), 0) << "only from the front";
  EXPECT_EQ(EmbeddingPrefix(std::vector<ParameterCounts>{}), 0);
}

TEST(EmbeddingPrefix, NeverCountsTheLastModule) {
  EXPECT_EQ(EmbeddingPrefix(std::vector<ParameterCounts>{{100, 100}, {100, 100}}), 1);
  EXPECT_EQ(EmbeddingPrefix(std::vector<ParameterCounts>{{100, 100}}), 0);
}

TEST(EmbeddingPrefix, IsZeroWhereEmbeddingsAreMostOfTheModel) {
  EXPECT_EQ(EmbeddingPrefix(std::vector<ParameterCounts>{{201, 201}, {99, 0}}), 0) << "it is what a recommender learns";
  EXPECT_EQ(EmbeddingPrefix(std::vector<ParameterCounts>{{200, 200}, {100, 0}}), 1);
}

// Looks rows up, or multiplies, or does both.
class TestBlock : public Block {
 public:
  TestBlock(int rows, int width) {
    if (rows > 0) table_ = register_module("table", torch::nn::Embedding(rows, 4));
    if (width > 0) linear_ = register_module("linear", torch::nn::Linear(4, width));
  }
  at::Tensor forward(at::Tensor input) override { return input; }

 private:
  torch::nn::Embedding table_ = nullptr;
  torch::nn::Linear linear_ = nullptr;
};

std::vector<LayerModule> Modules(const std::vector<std::pair<int, int>>& rows_and_widths) {
  std::vector<LayerModule> modules;
  for (const auto& [rows, width] : rows_and_widths) {
    const std::string name = "block" + std::to_string(modules.size());
    modules.emplace_back(name, std::vector<LayerModule::NamedBlock>{{name, std::make_shared<TestBlock>(rows, width)}});
  }
  return modules;
}

TEST(EmbeddingPrefix, FindsTheEmbeddingsOfLayerModules) {
  EXPECT_EQ(EmbeddingPrefix(Modules({{50, 0}, {0, 50}, {0, 50}})), 1);
  EXPECT_EQ(EmbeddingPrefix(Modules({{50, 50}, {0, 50}, {0, 50}})), 0) << "half of it multiplies";
  EXPECT_EQ(EmbeddingPrefix(Modules({{500, 0}, {0, 50}, {0, 50}})), 0) << "it is most of the model";
}

TEST(EmbeddingPrefix, IsZeroForAConvolutionalModel) {
  EXPECT_EQ(EmbeddingPrefix(egeria::testing::ToyModel::Make(3, 1)->modules), 0);
}

}  // namespace
}  // namespace egeria::worker
