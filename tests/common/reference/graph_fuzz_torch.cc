#include "tests/common/reference/graph_fuzz_torch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/reference/backend.h"
#include "common/reference/memory_budget.h"
#include "common/reference/reference_module.h"
#include "common/reference/tensor_bridge.h"
#include "common/tensor/torch_types.h"

namespace egeria::reference {
namespace {

using graph::Argument;
using graph::ArgumentList;
using Random = std::mt19937_64;

constexpr size_t kPage = 4096;

struct Mapping {
  void* start;
  size_t size;
};

// By the address that the tensor got: torch wants a block to be its own deleter's argument.
std::mutex mappings_mutex;
std::unordered_map<void*, Mapping>& Mappings() {
  static auto* const mappings = new std::unordered_map<void*, Mapping>;
  return *mappings;
}

void FreeGuarded(void* data) {
  if (data == nullptr) return;
  Mapping mapping;
  {
    const std::lock_guard lock(mappings_mutex);
    const auto found = Mappings().find(data);
    mapping = found->second;
    Mappings().erase(found);
  }
  munmap(mapping.start, mapping.size);
}

class GuardAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > size_t{16} << 20) throw GraphTooLarge("more than the fuzzer's allocator gives");
    if (bytes == 0) return {nullptr, nullptr, &FreeGuarded, c10::Device(c10::kCPU)};
    const size_t rounded = (bytes + 15) / 16 * 16;  // as much alignment as vector loads may ask for
    const size_t size = (rounded + kPage - 1) / kPage * kPage + kPage;
    void* mapping = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    char* end = static_cast<char*>(mapping) + size - kPage;
    mprotect(end, kPage, PROT_NONE);
    const std::lock_guard lock(mappings_mutex);
    Mappings()[end - rounded] = {mapping, size};
    return {end - rounded, end - rounded, &FreeGuarded, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &FreeGuarded; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};

int64_t Below(Random& random, int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint64_t>(bound)); }
bool OneIn(Random& random, int64_t n) { return Below(random, n) == 0; }

// Where arithmetic of 32 or 64 bits comes to its ends.
int64_t ExtremeInteger(Random& random) {
  static constexpr int64_t kExtremes[] = {0,
                                          1,
                                          -1,
                                          int64_t{1} << 31,
                                          (int64_t{1} << 31) - 1,
                                          -(int64_t{1} << 31),
                                          int64_t{1} << 40,
                                          int64_t{1} << 62,
                                          -(int64_t{1} << 62),
                                          std::numeric_limits<int64_t>::max(),
                                          std::numeric_limits<int64_t>::max() - 1,
                                          std::numeric_limits<int64_t>::min(),
                                          std::numeric_limits<int64_t>::min() + 1};
  return kExtremes[Below(random, std::size(kExtremes))];
}

int64_t OddInteger(Random& random) {
  static constexpr int64_t kSmall[] = {-1, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7};
  static constexpr int64_t kLarge[] = {8, 16, -2, -3, 63, 64, 255, 1024, 65537, 1 << 20, 1 << 28, (1 << 28) + 1};
  // Mostly small ones, that let the operator run.
  switch (Below(random, 10)) {
    case 0: return ExtremeInteger(random);
    case 1: return kLarge[Below(random, std::size(kLarge))];
    default: return kSmall[Below(random, std::size(kSmall))];
  }
}

double OddNumber(Random& random) {
  static constexpr double kOdd[] = {0,
                                    1,
                                    -1,
                                    0.5,
                                    2,
                                    1e-5,
                                    1e-12,
                                    1e30,
                                    -1e300,
                                    0x1p31,
                                    -0x1p62,
                                    0x1p63,
                                    6,
                                    std::numeric_limits<double>::infinity(),
                                    std::numeric_limits<double>::quiet_NaN()};
  return kOdd[Below(random, std::size(kOdd))];
}

// Chooses arguments by the operator's schema.
class GraphMaker {
 public:
  explicit GraphMaker(Random& random) : random_(random) {}

  graph::ModuleGraph Make() {
    static const std::vector<std::vector<int64_t>> kShapes = {{-1, 8}, {-1, 4, 6, 6}, {-1, 3, 8}, {-1, 2, 5, 8},
                                                              {-1, 1}, {-1, 4, 4, 4}, {-1},       {-1, 0, 3}};
    const int64_t inputs = 1 + Below(random_, 3);
    for (int64_t i = 0; i < inputs; ++i) {
      const DataType types[] = {DataType::kFloat32, DataType::kFloat32,  DataType::kFloat32, DataType::kInt64,
                                DataType::kBool,    DataType::kBFloat16, DataType::kUInt8};
      AddTensor(
          {"x" + std::to_string(i), types[Below(random_, std::size(types))], kShapes[Below(random_, kShapes.size())]},
          &graph_.inputs);
    }
    static const std::vector<std::vector<int64_t>> kWeights = {{4},          {8}, {8, 8}, {4, 4, 3, 3},
                                                               {4, 1, 3, 3}, {6}, {},     {0}};
    for (int64_t i = Below(random_, 5); i > 0; --i) {
      AddTensor({"w" + std::to_string(i), OneIn(random_, 6) ? DataType::kInt64 : DataType::kFloat32,
                 kWeights[Below(random_, kWeights.size())]},
                &graph_.weights);
    }
    for (int64_t i = 1 + Below(random_, 6); i > 0; --i) AddNode();
    graph_.outputs = {tensors_[Below(random_, 3) == 0 ? Below(random_, tensors_.size()) : tensors_.size() - 1]};
    return std::move(graph_);
  }

 private:
  void AddTensor(TensorSpec spec, std::vector<TensorSpec>* where) {
    tensors_.push_back(spec.name);
    where->push_back(std::move(spec));
  }

  void AddNode() {
    const auto allowed = graph::AllowedOperators();
    std::string name(allowed[Below(random_, allowed.size())]), overload;
    if (const size_t dot = name.find('.'); dot != std::string::npos) {
      overload = name.substr(dot + 1);
      name.resize(dot);
    }
    const c10::FunctionSchema& schema =
        c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str()).schema();
    graph::Node node{name, overload, {}, {}, {}};
    bool positional = true;
    for (const c10::Argument& argument : schema.arguments()) {
      positional = positional && !argument.kwarg_only();
      if (argument.default_value().has_value() && OneIn(random_, 2)) {
        positional = false;
        continue;
      }
      Argument value = Value(argument.real_type(), argument.name());
      if (positional) node.args.push_back(std::move(value));
      else node.kwargs.emplace(argument.name(), std::move(value));
    }
    NameResults(schema, &node);
    graph_.nodes.push_back(std::move(node));
  }

  void NameResults(const c10::FunctionSchema& schema, graph::Node* node) {
    for (const c10::Argument& result : schema.returns()) {
      const std::string name = "v" + std::to_string(values_++);
      const auto kind = result.real_type()->kind();
      node->outputs.push_back(name);
      if (kind == c10::TypeKind::TensorType) tensors_.push_back(name);
      if (kind == c10::TypeKind::IntType || kind == c10::TypeKind::SymIntType) integers_.push_back(name);
      if (kind != c10::TypeKind::ListType) continue;
      const std::string item = "v" + std::to_string(values_++);
      pending_.push_back({"egeria::getitem",
                          "",
                          {Argument{graph::ValueRef{name}},
                           Argument{OneIn(random_, 20) ? ExtremeInteger(random_) : Below(random_, 3)}},
                          {},
                          {item}});
    }
  }

  // Called between nodes would be simpler; items of lists become usable once their node is in place.
  Argument Value(const c10::TypePtr& type, const std::string& name) {
    FlushPending();
    switch (type->kind()) {
      case c10::TypeKind::OptionalType:
        if (OneIn(random_, 2)) return Argument{graph::None{}};
        return Value(type->castRaw<c10::OptionalType>()->getElementType(), name);
      case c10::TypeKind::TensorType:
        if (OneIn(random_, 12)) return Argument{OddNumber(random_)};
        return Argument{graph::ValueRef{tensors_[Below(random_, tensors_.size())]}};
      case c10::TypeKind::FloatType: return Argument{name == "dropout_p" ? 0.0 : OddNumber(random_)};
      case c10::TypeKind::NumberType:
        return OneIn(random_, 2) ? Argument{OddNumber(random_)} : Argument{OddInteger(random_)};
      case c10::TypeKind::BoolType: return Argument{name != "train" && name != "training" && OneIn(random_, 2)};
      case c10::TypeKind::StringType: return Text(name);
      case c10::TypeKind::ScalarTypeType:
        if (OneIn(random_, 20)) return Argument{ExtremeInteger(random_)};
        return Argument{static_cast<DataType>(1 + Below(random_, 9))};
      case c10::TypeKind::DeviceObjType: return Argument{std::string("cpu")};
      case c10::TypeKind::LayoutType: return Argument{OneIn(random_, 20) ? ExtremeInteger(random_) : int64_t{0}};
      case c10::TypeKind::MemoryFormatType:
        return Argument{OneIn(random_, 20) ? ExtremeInteger(random_) : Below(random_, 3)};
      case c10::TypeKind::ListType: {
        ArgumentList list;
        const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
        for (int64_t i = Below(random_, 5); i > 0; --i) list.push_back(Value(element, name));
        return Argument{std::move(list)};
      }
      default:
        if (!integers_.empty() && OneIn(random_, 4)) {
          return Argument{graph::ValueRef{integers_[Below(random_, integers_.size())]}};
        }
        return Argument{OddInteger(random_)};
    }
  }

  Argument Text(const std::string& name) {
    static const char* const kTexts[] = {"none", "tanh",  "constant", "reflect", "replicate", "circular",
                                         "same", "valid", "floor",    "trunc",   "nonsense"};
    return Argument{std::string(kTexts[Below(random_, std::size(kTexts))])};
  }

  void FlushPending() {
    for (graph::Node& node : pending_) {
      tensors_.push_back(node.outputs[0]);
      graph_.nodes.push_back(std::move(node));
    }
    pending_.clear();
  }

  Random& random_;
  graph::ModuleGraph graph_;
  std::vector<std::string> tensors_, integers_;
  std::vector<graph::Node> pending_;
  int values_ = 0;
};

at::Tensor RandomTensor(const TensorSpec& spec, int64_t batch, Random& random) {
  std::vector<int64_t> shape = spec.shape;
  for (int64_t& dimension : shape) dimension = dimension == -1 ? batch : dimension;
  const at::ScalarType type = ToScalarType(spec.dtype);
  // A copy, so that the tensor itself lies before a guard page.
  if (at::isFloatingType(type)) return at::randn(shape).to(type);
  if (type == at::kLong && OneIn(random, 3)) {
    at::Tensor extremes = at::empty(shape, at::kLong);
    for (int64_t i = 0; i < extremes.numel(); ++i) extremes.mutable_data_ptr<int64_t>()[i] = ExtremeInteger(random);
    return extremes;
  }
  return at::randint(0, type == at::kBool ? 2 : 6, shape).to(type);
}

bool IsSmall(const std::vector<TensorSpec>& specs) {
  int64_t total = 0;
  for (const TensorSpec& spec : specs) {
    int64_t elements = 1;
    for (int64_t dimension : spec.shape) {
      elements *= dimension == -1 ? 3 : dimension;
      if (elements > (1 << 16)) return false;
    }
    total += elements;
  }
  return total <= (1 << 18);
}

std::string NameOf(const absl::Status& status) {
  if (status.ok()) return "OK";
  const std::string message(status.message());
  const size_t end = message.find(']');
  return message.starts_with("[") && end != std::string::npos ? message.substr(1, end - 1) : "?";
}

}  // namespace

void InstallGuardPages() {
  static const bool installed = [] {
    c10::SetCPUAllocator(new GuardAllocator, 255);  // over the engine's own
    return true;
  }();
  (void)installed;
}

graph::ModuleGraph RandomGraph(Random& random) { return GraphMaker(random).Make(); }

std::string BindAndRun(const graph::ModuleGraph& graph, Random& random) {
  const c10::InferenceMode inference;
  const RunLimits limits{.max_elements = 1 << 20, .max_bytes = size_t{32} << 20, .max_cpu_time = absl::Seconds(5)};
  auto module = ReferenceModule::Create(graph, limits);
  if (!module.ok()) return NameOf(module.status());
  // A graph may ask for more than this test wants to give.
  if (!IsSmall(graph.inputs) || !IsSmall(graph.weights)) return "OK";
  const int64_t batch = 2 + Below(random, 2);
  std::vector<at::Tensor> inputs;
  for (const TensorSpec& spec : graph.inputs) inputs.push_back(RandomTensor(spec, batch, random));
  std::vector<WireTensor> weights;
  for (const TensorSpec& spec : graph.weights) {
    const at::Tensor weight = RandomTensor(spec, batch, random);
    weights.push_back(MakeWireTensor(spec, weight.const_data_ptr()));
  }
  (*module)->SetWeights(std::move(weights));
  const auto outputs = (*module)->Calibrate(inputs);
  if (!outputs.ok()) return NameOf(outputs.status());
  for (const at::Tensor& output : *outputs) {
    if (output.dim() > 0 && output.size(0) < 1024 && output.is_floating_point()) GramMatrix(output);
  }
  static const auto* const backends = new auto(*MakeBackends({"prepacked", "bf16", "int8"}));
  for (const auto& backend : *backends) (void)(*module)->Run(*backend, inputs);
  return "OK";
}

}  // namespace egeria::reference
