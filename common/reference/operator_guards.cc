#include "common/reference/operator_guards.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/eq.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/reference/memory_budget.h"

namespace egeria::reference {
namespace {

using Arguments = std::vector<c10::IValue>;

// A list's tensors take a few hundred bytes each however small they are.
constexpr int64_t kMaxListLength = 4096;

void LimitList(int64_t length) {
  if (length > kMaxListLength) {
    throw GraphTooLarge(absl::StrCat("a list of ", length, " tensors, at most ", kMaxListLength));
  }
}

bool IsIntegerType(const c10::Type& type) {
  return type.kind() == c10::TypeKind::IntType || type.kind() == c10::TypeKind::SymIntType;
}

void CheckInteger(int64_t value) {
  if (value >= -kMaxInteger && value <= kMaxInteger) return;
  throw GraphTooLarge(absl::StrCat("the integer ", value, " is not within +-", kMaxInteger));
}

void CheckVisits(double visits) {
  if (!(visits <= kMaxVisits)) throw GraphTooLarge(absl::StrCat(visits, " visits of elements, at most ", kMaxVisits));
}

int64_t SizeAlong(const c10::IValue& tensor, const c10::IValue& dimension) {
  const at::Tensor& value = tensor.toTensor();
  return value.size(c10::maybe_wrap_dim(dimension.toInt(), value.dim()));
}

void GuardSplit(const Arguments& arguments) {
  const int64_t length = arguments[1].toInt();
  if (length > 0) LimitList(SizeAlong(arguments[0], arguments[2]) / length);
}

void GuardUnbind(const Arguments& arguments) { LimitList(SizeAlong(arguments[0], arguments[1])); }

void GuardSplitWithSizes(const Arguments& arguments) {
  LimitList(static_cast<int64_t>(arguments[1].toIntVector().size()));
}

// A dimension of size 0 gives as many chunks as are asked for.
void GuardChunk(const Arguments& arguments) {
  const int64_t chunks = arguments[1].toInt(), size = SizeAlong(arguments[0], arguments[2]);
  LimitList(size == 0 ? chunks : std::min(chunks, size));
}

// aten::_native_batch_norm_legit_no_training reads as many statistics as the input has channels.
void GuardBatchNorm(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  TORCH_CHECK(input.dim() >= 2, "BatchNorm takes two or more dimensions, not ", input.dim());
  for (int i = 1; i <= 4; ++i) {
    if (arguments[i].isNone()) continue;
    const at::Tensor& statistic = arguments[i].toTensor();
    TORCH_CHECK(statistic.dim() == 1 && statistic.size(0) == input.size(1), "BatchNorm of ", input.size(1),
                " channels got ", statistic.sizes());
  }
}

// The fused attention kernel takes the query's and the key's shapes for those of all.
void GuardAttention(const Arguments& arguments) {
  const at::Tensor &query = arguments[0].toTensor(), &key = arguments[1].toTensor(), &value = arguments[2].toTensor();
  const int64_t rank = query.dim();
  TORCH_CHECK(rank >= 2 && key.dim() == rank && value.dim() == rank, "attention of ", query.sizes(), ", ", key.sizes(),
              " and ", value.sizes());
  for (int64_t i = 0; i + 2 < rank; ++i) {
    TORCH_CHECK(query.size(i) == key.size(i) && key.size(i) == value.size(i), "attention does not broadcast");
  }
  TORCH_CHECK(query.size(-1) == key.size(-1) && key.size(-2) == value.size(-2), "attention of ", query.sizes(), ", ",
              key.sizes(), " and ", value.sizes());
  TORCH_CHECK(query.numel() > 0 && key.numel() > 0 && value.numel() > 0, "attention over nothing");
  CheckProducts(static_cast<double>(query.numel()) * static_cast<double>(key.size(-2)) +
                    static_cast<double>(value.numel()) * static_cast<double>(query.size(-2)),
                query.is_floating_point());
  if (arguments[3].isNone()) return;
  const at::Tensor& mask = arguments[3].toTensor();
  std::vector<int64_t> full = query.sizes().vec();
  full.back() = key.size(-2);
  TORCH_CHECK(mask.dim() <= rank, "an attention mask of ", mask.sizes());
  for (int64_t i = 1; i <= mask.dim(); ++i) {
    TORCH_CHECK(mask.size(-i) == 1 || mask.size(-i) == full[rank - i], "an attention mask of ", mask.sizes(), " for ",
                at::IntArrayRef(full));
  }
}

// A processor traps where the smallest integer is divided by -1.
void GuardDivision(const Arguments& arguments) {
  const at::Tensor &dividend = arguments[0].toTensor(), &divisor = arguments[1].toTensor();
  if (!c10::isIntegralType(dividend.scalar_type(), true) || !c10::isIntegralType(divisor.scalar_type(), true)) return;
  if (!at::eq(divisor, -1).any().item<bool>()) return;
  for (const int64_t smallest : {int64_t{std::numeric_limits<int32_t>::min()}, std::numeric_limits<int64_t>::min()}) {
    TORCH_CHECK(!at::eq(dividend.to(at::kLong), smallest).any().item<bool>(), "the integer ", smallest,
                " cannot be divided by -1");
  }
}

// Only the overload of aten::div that has a rounding mode divides integers as such.
void GuardDivisionByTensor(const Arguments& arguments) {
  if (arguments.size() == 3 && !arguments[2].isNone()) GuardDivision(arguments);
}

// Arguments: [[start,] end [, step]], then four that do not matter here.
void GuardRange(const Arguments& arguments) {
  const size_t numbers = arguments.size() - 4;
  const auto number = [&](size_t i) { return arguments[i].toScalar().toDouble(); };
  const double start = numbers > 1 ? number(0) : 0, end = number(numbers > 1 ? 1 : 0),
               step = numbers > 2 ? number(2) : 1;
  constexpr double kExact = 0x1p53;
  TORCH_CHECK(std::abs(start) <= kExact && std::abs(end) <= kExact && std::abs(step) <= kExact && step != 0,
              "a range from ", start, " to ", end, " by ", step);
  const double length = (end - start) / step;
  TORCH_CHECK(length >= 0, "a range from ", start, " to ", end, " by ", step);
  if (length > static_cast<double>(kMaxInteger)) throw GraphTooLarge(absl::StrCat("a range of ", length, " numbers"));
}

void GuardDiff(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const int64_t times = arguments[1].toInt();
  TORCH_CHECK(times >= 0 && times <= SizeAlong(arguments[0], arguments[2]), "differences are taken ", times, " times");
  CheckVisits(static_cast<double>(times) * static_cast<double>(input.numel()));
}

// The value of a list for one of `count` dimensions; a list of one value stands for all.
int64_t OfDimension(const c10::IValue& list, size_t i, size_t count, int64_t otherwise) {
  const std::vector<int64_t> values = list.toIntVector();
  if (values.empty()) return otherwise;
  TORCH_CHECK(values.size() == 1 || values.size() == count, "a list of ", values.size(), " for ", count, " dimensions");
  return values[values.size() == 1 ? 0 : i];
}

struct Window {
  int64_t kernel, stride, padding, dilation;
};

// How many windows lie along a dimension, at most.
double CountWindows(int64_t size, const Window& window) {
  TORCH_CHECK(window.kernel >= 1 && window.stride >= 1 && window.padding >= 0 && window.dilation >= 1, "a window of ",
              window.kernel, ", stride ", window.stride, ", padding ", window.padding, " and dilation ",
              window.dilation);
  const double room = static_cast<double>(size) + 2.0 * static_cast<double>(window.padding) -
                      static_cast<double>(window.dilation) * static_cast<double>(window.kernel - 1);
  TORCH_CHECK(room + static_cast<double>(window.stride) >= 2, "a window of ", window.kernel, " with dilation ",
              window.dilation, " over ", size, " elements with padding ", window.padding);
  return std::max(0.0, std::floor((room - 1) / static_cast<double>(window.stride))) +
         2;  // with one that the ceiling mode may add
}

// Pools over the last `dimensions` dimensions: input, kernel, stride, padding, and dilation where `dilated`.
void GuardPool(const Arguments& arguments, size_t dimensions, bool dilated) {
  const at::Tensor& input = arguments[0].toTensor();
  TORCH_CHECK(static_cast<size_t>(input.dim()) >= dimensions, "a pool over ", input.dim(), " dimensions");
  double visits = 1;
  for (int64_t size : input.sizes().slice(0, static_cast<size_t>(input.dim()) - dimensions)) {
    visits *= static_cast<double>(size);
  }
  for (size_t i = 0; i < dimensions; ++i) {
    const int64_t kernel = OfDimension(arguments[1], i, dimensions, 1);
    const Window window{kernel, OfDimension(arguments[2], i, dimensions, kernel),
                        OfDimension(arguments[3], i, dimensions, 0),
                        dilated ? OfDimension(arguments[4], i, dimensions, 1) : 1};
    TORCH_CHECK(window.padding <= kernel / 2, "a pool's padding of ", window.padding, " with a window of ", kernel);
    const int64_t size = input.size(input.dim() - static_cast<int64_t>(dimensions) + static_cast<int64_t>(i));
    visits *= CountWindows(size, window) * static_cast<double>(kernel);
  }
  CheckVisits(visits);
}
void GuardMaxPool1d(const Arguments& arguments) { GuardPool(arguments, 1, true); }
void GuardMaxPool2d(const Arguments& arguments) { GuardPool(arguments, 2, true); }
void GuardAvgPool1d(const Arguments& arguments) { GuardPool(arguments, 1, false); }
void GuardAvgPool2d(const Arguments& arguments) { GuardPool(arguments, 2, false); }

// Windows of an adaptive pool overlap by one element at most at each end.
void GuardAdaptivePool(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const std::vector<int64_t> sizes = arguments[1].toIntVector();
  TORCH_CHECK(static_cast<size_t>(input.dim()) >= sizes.size(), "a pool over ", input.dim(), " dimensions");
  double visits = 1;
  for (int64_t i = 0; i < input.dim(); ++i) {
    const int64_t pooled = i - (input.dim() - static_cast<int64_t>(sizes.size()));
    const int64_t size = pooled < 0 ? 0 : sizes[static_cast<size_t>(pooled)];
    TORCH_CHECK(size >= 0, "a pool to a size of ", size);
    visits *= static_cast<double>(input.size(i)) + 2.0 * static_cast<double>(size);
  }
  CheckVisits(visits);
}

struct ConvolutionArguments {
  size_t dimensions = 0;
  c10::IValue stride, padding, dilation;  // padding: a string, or a list
  int64_t groups = 1;
  bool transposed = false;
};

void GuardConvolution(const at::Tensor& input, const at::Tensor& weight, const ConvolutionArguments& given) {
  const size_t n = given.dimensions;
  TORCH_CHECK(weight.dim() == static_cast<int64_t>(n) + 2 && input.dim() >= static_cast<int64_t>(n) + 1 &&
                  input.dim() <= static_cast<int64_t>(n) + 2,
              "a convolution of ", input.sizes(), " with ", weight.sizes());
  TORCH_CHECK(given.groups >= 1, "a convolution in ", given.groups, " groups");
  // The weight's elements, each as often as there are windows in each sample.
  double products = static_cast<double>(weight.numel());
  if (input.dim() == weight.dim()) products *= static_cast<double>(input.size(0));
  for (size_t i = 0; i < n; ++i) {
    const int64_t size = input.size(input.dim() - static_cast<int64_t>(n - i));
    const int64_t kernel = weight.size(static_cast<int64_t>(i) + 2);
    Window window{kernel, OfDimension(given.stride, i, n, 1), 0, OfDimension(given.dilation, i, n, 1)};
    if (!given.padding.isString()) window.padding = OfDimension(given.padding, i, n, 0);
    // "same" pads as much as leaves as many windows as elements, "valid" not at all.
    if (given.padding.isString() && given.padding.toStringRef() == "same")
      window.padding = (kernel * window.dilation) / 2 + 1;
    TORCH_CHECK(window.stride >= 1 && window.padding >= 0 && window.dilation >= 1, "a convolution's stride is ",
                window.stride, ", its padding ", window.padding, ", its dilation ", window.dilation);
    // Every element of a transposed convolution's input meets the whole window.
    if (given.transposed) window = {1, 1, 0, 1};
    products *= CountWindows(size, window);
  }
  CheckProducts(products, input.is_floating_point());
}

// input, weight, bias, stride, padding, dilation, groups
void GuardConvNd(const Arguments& arguments, size_t dimensions) {
  GuardConvolution(arguments[0].toTensor(), arguments[1].toTensor(),
                   {dimensions, arguments[3], arguments[4], arguments[5], arguments[6].toInt()});
}
void GuardConv1d(const Arguments& arguments) { GuardConvNd(arguments, 1); }
void GuardConv2d(const Arguments& arguments) { GuardConvNd(arguments, 2); }

// input, weight, bias, stride, padding, output_padding, groups, dilation
void GuardConvTranspose2d(const Arguments& arguments) {
  GuardConvolution(arguments[0].toTensor(), arguments[1].toTensor(),
                   {2, arguments[3], arguments[4], arguments[7], arguments[6].toInt(), true});
}

// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, ...
void GuardAnyConvolution(const Arguments& arguments) {
  const at::Tensor& weight = arguments[1].toTensor();
  TORCH_CHECK(weight.dim() >= 3 && weight.dim() <= 5, "a convolution with a weight of ", weight.sizes());
  GuardConvolution(arguments[0].toTensor(), weight,
                   {static_cast<size_t>(weight.dim()) - 2, arguments[3], arguments[4], arguments[5],
                    arguments[8].toInt(), arguments[6].toBool()});
}

// The products of a (... x n x k) and b (... x k x m), whose leading dimensions broadcast.
double ProductsOf(const at::Tensor& a, const at::Tensor& b) {
  double products = a.dim() == 0 ? 1 : static_cast<double>(a.size(-1));
  if (a.dim() >= 2) products *= static_cast<double>(a.size(-2));
  if (b.dim() >= 2) products *= static_cast<double>(b.size(-1));
  for (int64_t i = 3; i <= std::max(a.dim(), b.dim()); ++i) {
    const int64_t of_a = i <= a.dim() ? a.size(-i) : 1, of_b = i <= b.dim() ? b.size(-i) : 1;
    products *= static_cast<double>(std::max(of_a, of_b));
  }
  return products;
}
void GuardProduct(const Arguments& arguments) {
  const at::Tensor &a = arguments[0].toTensor(), &b = arguments[1].toTensor();
  CheckProducts(ProductsOf(a, b), a.is_floating_point());
}
void GuardSumAndProduct(const Arguments& arguments) {
  const at::Tensor &a = arguments[1].toTensor(), &b = arguments[2].toTensor();
  CheckProducts(ProductsOf(a, b), a.is_floating_point());
}
void GuardLinear(const Arguments& arguments) {
  const at::Tensor &input = arguments[0].toTensor(), &weight = arguments[1].toTensor();
  const double width = weight.dim() < 2 ? 1 : static_cast<double>(weight.size(0));
  CheckProducts(static_cast<double>(input.numel()) * width, input.is_floating_point());
}

// input, N, C, H x W, groups, as numbers that the kernel believes.
void GuardNativeGroupNorm(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const int64_t n = arguments[3].toInt(), c = arguments[4].toInt(), hw = arguments[5].toInt(),
                groups = arguments[6].toInt();
  TORCH_CHECK(input.dim() >= 2 && input.size(0) == n && input.size(1) == c && n >= 1 && c >= 1 && hw >= 1 &&
                  n * c <= kMaxInteger && n * c * hw == input.numel() && groups >= 1 && c % groups == 0,
              "a norm of ", groups, " groups over ", n, " x ", c, " x ", hw, " got ", input.sizes());
}

// input, output_size, ..., scale_factors
void GuardUpsample(const Arguments& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  TORCH_CHECK(input.dim() == 4, "upsampling of ", input.sizes());
  double elements = static_cast<double>(input.size(0)) * static_cast<double>(input.size(1));
  const bool by_size = !arguments[1].isNone();
  const std::vector<int64_t> sizes = by_size ? arguments[1].toIntVector() : std::vector<int64_t>();
  const std::vector<double> scales =
      arguments.back().isNone() ? std::vector<double>() : arguments.back().toDoubleVector();
  TORCH_CHECK(by_size ? sizes.size() == 2 : scales.size() == 2, "upsampling takes two sizes or two factors");
  for (size_t i = 0; i < 2; ++i) {
    const double size = by_size ? static_cast<double>(sizes[i])
                                : static_cast<double>(input.size(2 + static_cast<int64_t>(i))) * scales[i];
    TORCH_CHECK(size >= 1, "upsampling to ", size);
    elements *= size;
  }
  if (!(elements <= static_cast<double>(kMaxInteger)))
    throw GraphTooLarge(absl::StrCat("upsampling to ", elements, " elements"));
}

}  // namespace

std::vector<size_t> BoundedArguments(const c10::FunctionSchema& schema) {
  std::vector<size_t> bounded;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (schema.name() == "aten::slice" && (argument.name() == "start" || argument.name() == "end")) continue;
    c10::TypePtr type = argument.real_type();
    if (const auto* optional = type->castRaw<c10::OptionalType>()) type = optional->getElementType();
    if (const auto* list = type->castRaw<c10::ListType>()) type = list->getElementType();
    if (IsIntegerType(*type)) bounded.push_back(i);
  }
  return bounded;
}

void CheckIntegers(const c10::IValue& argument) {
  if (argument.isInt()) CheckInteger(argument.toInt());
  if (!argument.isIntList()) return;
  const c10::List<int64_t> values = argument.toIntList();
  for (size_t i = 0; i < values.size(); ++i) CheckInteger(values.get(i));
}

void CheckExtent(const at::Tensor& tensor, int64_t max_elements) {
  TORCH_CHECK(tensor.dim() <= kMaxRank, "a value of ", tensor.dim(), " dimensions, at most ", kMaxRank);
  int64_t extent = 1;
  for (int64_t size : tensor.sizes()) {
    if (__builtin_mul_overflow(extent, std::max<int64_t>(size, 1), &extent) || extent > max_elements) {
      throw GraphTooLarge(absl::StrCat("a value of ", tensor.dim(), " dimensions, one of them ", size,
                                       ", which has more than ", max_elements, " elements"));
    }
  }
}

void CheckProducts(double products, bool fast) {
  const double most = fast ? kMaxProducts : kMaxVisits;
  if (!(products <= most)) throw GraphTooLarge(absl::StrCat(products, " multiplications, at most ", most));
}

OperatorGuard GuardOf(const std::string& name) {
  static const auto* const guards = new std::map<std::string, OperatorGuard>{
      {"aten::_convolution", &GuardAnyConvolution},
      {"aten::_native_batch_norm_legit_no_training", &GuardBatchNorm},
      {"aten::adaptive_avg_pool1d", &GuardAdaptivePool},
      {"aten::adaptive_avg_pool2d", &GuardAdaptivePool},
      {"aten::addmm", &GuardSumAndProduct},
      {"aten::arange", &GuardRange},
      {"aten::avg_pool1d", &GuardAvgPool1d},
      {"aten::avg_pool2d", &GuardAvgPool2d},
      {"aten::baddbmm", &GuardSumAndProduct},
      {"aten::bmm", &GuardProduct},
      {"aten::chunk", &GuardChunk},
      {"aten::conv1d", &GuardConv1d},
      {"aten::conv2d", &GuardConv2d},
      {"aten::conv_transpose2d", &GuardConvTranspose2d},
      {"aten::convolution", &GuardAnyConvolution},
      {"aten::diff", &GuardDiff},
      {"aten::div", &GuardDivisionByTensor},
      {"aten::floor_divide", &GuardDivision},
      {"aten::linear", &GuardLinear},
      {"aten::matmul", &GuardProduct},
      {"aten::max_pool1d", &GuardMaxPool1d},
      {"aten::max_pool2d", &GuardMaxPool2d},
      {"aten::mm", &GuardProduct},
      {"aten::native_group_norm", &GuardNativeGroupNorm},
      {"aten::scaled_dot_product_attention", &GuardAttention},
      {"aten::split", &GuardSplit},
      {"aten::split_with_sizes", &GuardSplitWithSizes},
      {"aten::unbind", &GuardUnbind},
      {"aten::upsample_bilinear2d", &GuardUpsample},
      {"aten::upsample_nearest2d", &GuardUpsample},
  };
  const auto found = guards->find(name);
  return found == guards->end() ? nullptr : found->second;
}

}  // namespace egeria::reference
