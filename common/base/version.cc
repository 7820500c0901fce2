#include "common/base/version.h"

namespace egeria {

const char* Version() { return EGERIA_VERSION; }

}  // namespace egeria
