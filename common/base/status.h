#ifndef EGERIA_COMMON_BASE_STATUS_H_
#define EGERIA_COMMON_BASE_STATUS_H_

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

// Returns from the enclosing function when `expr`, an absl::Status, is not OK.
#define EGERIA_RETURN_IF_ERROR(expr)                 \
  do {                                               \
    absl::Status egeria_status_ = (expr);            \
    if (!egeria_status_.ok()) return egeria_status_; \
  } while (false)

// Assigns the value of `expr`, an absl::StatusOr, to `lhs`, or returns its status.
#define EGERIA_ASSIGN_OR_RETURN(lhs, expr) \
  EGERIA_ASSIGN_OR_RETURN_IMPL_(EGERIA_CONCAT_(egeria_or_, __LINE__), lhs, expr)
#define EGERIA_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                                  \
  if (!var.ok()) return std::move(var).status();      \
  lhs = *std::move(var)
#define EGERIA_CONCAT_(a, b) EGERIA_CONCAT_IMPL_(a, b)
#define EGERIA_CONCAT_IMPL_(a, b) a##b

// A programmer's error: prints the condition and aborts. Never for what a user or the network may send.
#define EGERIA_CHECK(condition)                                                          \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

namespace egeria {

// A status whose message starts with a stable name in brackets, as the .proto files list them:
// NamedError(absl::StatusCode::kNotFound, "UNKNOWN_JOB", "register first").
template <typename... Args>
absl::Status NamedError(absl::StatusCode code, const char* name, const Args&... message) {
  return absl::Status(code, absl::StrCat("[", name, "] ", message...));
}

}  // namespace egeria

#endif  // EGERIA_COMMON_BASE_STATUS_H_
