#include "common/rpc/grpc_status.h"

#include <string>

#include "common/base/status.h"
#include "gtest/gtest.h"

namespace egeria::rpc {
namespace {

TEST(GrpcStatus, SurvivesTheRoundTripForEveryCode) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "[NAME] why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  }
  EXPECT_TRUE(FromGrpc(grpc::Status::OK).ok());
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
  EXPECT_EQ(ToGrpc(absl::NotFoundError("")).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(GrpcStatus, CutsMessagesThatWouldNotFitAHeader) {
  EXPECT_EQ(ToGrpc(absl::InternalError(std::string(100'000, 'x'))).error_message().size(), 4096u);
}

TEST(GrpcStatus, FindsTheNameOfAnError) {
  EXPECT_EQ(ErrorName(NamedError(absl::StatusCode::kNotFound, "UNKNOWN_JOB", "register first")), "UNKNOWN_JOB");
  for (const char* text : {"", "no name", "[", "[UNKNOWN_JOB", "[not a name] x", "x [LATE] y"}) {
    EXPECT_EQ(ErrorName(absl::NotFoundError(text)), "") << text;
  }
}

}  // namespace
}  // namespace egeria::rpc
