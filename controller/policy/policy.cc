#include "controller/policy/policy.h"

namespace egeria::policy {

const char* ActionName(Action action) { return action == Action::kFreeze ? "freeze" : "unfreeze"; }

}  // namespace egeria::policy
