#ifndef EGERIA_COMMON_BASE_PRINTABLE_H_
#define EGERIA_COMMON_BASE_PRINTABLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace egeria {

// The text on one line, for a terminal or a log, whatever it is: control characters, line separators, characters that
// turn the direction of writing or cannot be seen, and bytes that are no UTF-8 become escapes such as \n, \x1b and
// \u202e. All else stays as it is, so that a text that was made printable stays the same.
std::string Printable(absl::string_view text);

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_PRINTABLE_H_
