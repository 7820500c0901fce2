#include "common/policy/policy.h"

#include <cstddef>

namespace egeria::policy {

const char* ActionName(Action action) { return action == Action::kFreeze ? "freeze" : "unfreeze"; }

PolicyStatus EmptyStatus(int modules) {
  PolicyStatus status;
  status.modules.resize(static_cast<size_t>(modules));
  return status;
}

}  // namespace egeria::policy
