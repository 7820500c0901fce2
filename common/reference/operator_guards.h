#ifndef EGERIA_COMMON_REFERENCE_OPERATOR_GUARDS_H_
#define EGERIA_COMMON_REFERENCE_OPERATOR_GUARDS_H_

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace egeria::reference {

// Checks the arguments of one call, in the schema's order; throws c10::Error or GraphTooLarge.
using OperatorGuard = void (*)(const std::vector<c10::IValue>& arguments);

// The guard checks what the operator's kernel relies on without checking it (it would read beyond a tensor's
// end), and refuses results so large that checking them afterwards comes too late. It is null where ATen checks
// enough. Random graphs with a guard page behind every tensor have shown which operators need one.
OperatorGuard GuardOf(const std::string& name);

}  // namespace egeria::reference

#endif  // EGERIA_COMMON_REFERENCE_OPERATOR_GUARDS_H_
