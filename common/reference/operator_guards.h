#ifndef EGERIA_COMMON_REFERENCE_OPERATOR_GUARDS_H_
#define EGERIA_COMMON_REFERENCE_OPERATOR_GUARDS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

// These functions check a call before torch sees it. Operators trust their arguments further than a graph from the
// network may be trusted: kernels overflow, divide by zero, read beyond a tensor's end or never come to an end. First
// come the rules that hold for every operator, then the guards of some. All throw c10::Error, or GraphTooLarge where
// something is only too much.
namespace egeria::reference {

// The largest size, dimension, stride and so on that an operator is given, as large as a tensor's number of elements
// may be, and of either sign. An operator that multiplies two of them does not overflow.
inline constexpr int64_t kMaxInteger = int64_t{1} << 28;
inline constexpr int64_t kMaxRank = 16;

// A call may make so many multiplications of floating-point matrix products and convolutions, or visit so many single
// elements, which takes a processor longer. Either takes about ten seconds of one core.
inline constexpr double kMaxProducts = 0x1p39;
inline constexpr double kMaxVisits = 0x1p34;

// The arguments of an operator, by index, whose integers are bounded by kMaxInteger: all that are integers or lists of
// them, but for numbers that are calculated with, and the ends of a slice, which torch clamps.
std::vector<size_t> BoundedArguments(const c10::FunctionSchema& schema);
void CheckIntegers(const c10::IValue& argument);

// The tensor has at most `max_elements`, each dimension of 0 counted as 1, and kMaxRank dimensions. Their product, and
// that of any of them, does not overflow then.
void CheckExtent(const at::Tensor& tensor, int64_t max_elements);

// Throws GraphTooLarge where so many products cost more than a call may. `fast`: they are made by a library for
// matrices.
void CheckProducts(double products, bool fast = true);

// Checks the arguments of one call, in the schema's order.
using OperatorGuard = void (*)(const std::vector<c10::IValue>& arguments);

// Null where the rules suffice. Random graphs with extreme integers and a guard page behind every tensor have shown
// which operators need a guard.
OperatorGuard GuardOf(const std::string& name);

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_OPERATOR_GUARDS_H_
