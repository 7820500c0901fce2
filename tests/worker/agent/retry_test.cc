#include "worker/agent/retry.h"

#include "common/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace egeria::worker {
namespace {

using ::testing::HasSubstr;

absl::Status Named(absl::StatusCode code, const char* name) { return NamedError(code, name, "why"); }

TEST(Retry, IsSoonWhereTheControllerIsAwayOrForgot) {
  EXPECT_EQ(RetryAfter(absl::UnavailableError("connection refused")), Retry::kSoon);
  EXPECT_EQ(RetryAfter(absl::DeadlineExceededError("")), Retry::kSoon);
  EXPECT_EQ(RetryAfter(absl::InternalError("")), Retry::kSoon);
  EXPECT_EQ(RetryAfter(Named(absl::StatusCode::kNotFound, "UNKNOWN_JOB")), Retry::kSoon);
  EXPECT_EQ(RetryAfter(Named(absl::StatusCode::kUnavailable, "JOURNAL")), Retry::kSoon);
  EXPECT_EQ(RetryAfter(Named(absl::StatusCode::kResourceExhausted, "UPLOAD_TOO_LARGE")), Retry::kSoon);
}

TEST(Retry, IsSlowWhereAskingOftenDoesNotHelp) {
  EXPECT_EQ(RetryAfter(Named(absl::StatusCode::kAlreadyExists, "RANK_CONFLICT")), Retry::kSlowly);
  EXPECT_EQ(RetryAfter(Named(absl::StatusCode::kResourceExhausted, "TOO_MANY_JOBS")), Retry::kSlowly);
  EXPECT_EQ(RetryAfter(absl::UnimplementedError("")), Retry::kSlowly);
}

TEST(Retry, IsNeverWhereTheAnswerWillBeTheSame) {
  for (const char* name :
       {"STALE_GENERATION", "JOB_CONFLICT", "BAD_JOB_ID", "BAD_REGISTRATION", "BAD_POLICY", "BAD_MESSAGE"}) {
    EXPECT_EQ(RetryAfter(Named(absl::StatusCode::kInvalidArgument, name)), Retry::kNever) << name;
  }
}

TEST(Advice, SaysWhatToDo) {
  EXPECT_THAT(Advice(Named(absl::StatusCode::kAlreadyExists, "JOB_CONFLICT")), HasSubstr("EGERIA_JOB_ID"));
  EXPECT_THAT(Advice(Named(absl::StatusCode::kInvalidArgument, "BAD_POLICY")), HasSubstr("docs/reference/policies.md"));
  EXPECT_THAT(Advice(absl::UnavailableError("")), HasSubstr("tried again"));
}

}  // namespace
}  // namespace egeria::worker
