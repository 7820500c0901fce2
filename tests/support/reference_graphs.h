#ifndef EGERIA_TESTS_SUPPORT_REFERENCE_GRAPHS_H_
#define EGERIA_TESTS_SUPPORT_REFERENCE_GRAPHS_H_

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/graph/graph.h"
#include "common/tensor/wire_tensor.h"

// Module graphs of known networks with random weights, for tests and benchmarks of the reference engine.
namespace egeria::testing {

struct SampleModule {
  std::string name;
  graph::ModuleGraph graph;
  std::vector<WireTensor> weights;
  std::vector<int64_t> input_shape;  // shape of the one input, without the batch
};

graph::Argument Ref(std::string name);
graph::Argument Int(int64_t value);
graph::Argument Float(double value);
graph::Argument Bool(bool value);
graph::Argument Text(std::string value);
graph::Argument None();
graph::Argument Ints(const std::vector<int64_t>& values);

// How operators are spelled: as torch.export does (aten::conv2d, aten::_native_batch_norm_legit_no_training),
// or as torch's C++ tracer does (aten::_convolution, aten::batch_norm).
enum class Spelling { kExported, kTraced };

// float32 values with this standard deviation, shifted by `mean`.
WireTensor RandomTensor(const std::string& name, std::vector<int64_t> shape, std::mt19937_64& random,
                        float deviation = 1, float mean = 0);

// Appends operators and their weights; every call returns the name of its result. Weights are random, scaled
// so that activations keep their size.
class GraphBuilder {
 public:
  GraphBuilder(std::string name, std::vector<int64_t> input_shape, uint64_t seed, Spelling spelling);

  const std::string& input() const { return input_; }
  std::string Node(const std::string& op, const std::string& overload, std::vector<graph::Argument> args);
  std::string Weight(std::vector<int64_t> shape, float deviation, float mean = 0, bool positive = false);
  std::string Convolution(const std::string& x, int64_t in, int64_t out, int64_t kernel, int64_t stride,
                          int64_t groups = 1);
  // `gain` scales the result: small on the last norm of a residual branch, so that sums do not grow.
  std::string BatchNorm(const std::string& x, int64_t channels, float gain = 1);
  std::string Linear(const std::string& x, int64_t in, int64_t out);
  std::string LayerNorm(const std::string& x, int64_t width);
  std::string Relu(const std::string& x);
  std::string Add(const std::string& a, const std::string& b);
  SampleModule Finish(const std::string& output);

 private:
  std::string NextName();

  SampleModule module_;
  std::mt19937_64 random_;
  const Spelling spelling_;
  const std::string input_ = "x";
  int values_ = 0;
};

// conv-bn-relu-conv-bn, added to its input, relu.
SampleModule BasicBlock(int64_t channels, int64_t size, Spelling spelling = Spelling::kExported, uint64_t seed = 1);
// CIFAR's ResNet-56, whole, with shortcuts that subsample and pad.
SampleModule ResNet56(uint64_t seed = 1);
// Its last third: nine blocks of 64 channels at 8x8, the first of which halves the images.
SampleModule ResNet56LastStage(uint64_t seed = 1);
// ResNet-50's bottleneck of 256 channels at 14x14 with 1024 around it.
SampleModule Bottleneck(uint64_t seed = 1);
// MobileNetV2's inverted residual: 32 channels, expanded six times, depthwise 3x3, at 28x28.
SampleModule InvertedResidual(uint64_t seed = 1);
// BERT-base's encoder layer: width 768, 12 heads; inputs are [batch, sequence, 768].
SampleModule BertLayer(int64_t sequence = 128, uint64_t seed = 1);
// Three linears with ReLU, GELU and nothing after them.
SampleModule Mlp(int64_t width = 512, uint64_t seed = 1);

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_REFERENCE_GRAPHS_H_
