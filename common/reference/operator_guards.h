#ifndef EGERIA_COMMON_REFERENCE_OPERATOR_GUARDS_H_
#define EGERIA_COMMON_REFERENCE_OPERATOR_GUARDS_H_

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace egeria::reference {

// Checks the arguments of one call, in the schema's order; throws c10::Error or GraphTooLarge.
using OperatorGuard = void (*)(const std::vector<c10::IValue>& arguments);

// What an operator does not check itself although its kernel relies on it (it would read beyond a tensor's
// end), or what it would make so much of that checking the result comes too late. Null where ATen checks
// enough. Found by running random graphs with a guard page behind every tensor.
OperatorGuard GuardOf(const std::string& name);

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_OPERATOR_GUARDS_H_
