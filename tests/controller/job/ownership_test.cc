#include "controller/job/ownership.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/controller/job/job_manager_fixture.h"

namespace egeria::controller {
namespace {

using ::egeria::testing::TestRegistration;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";

rpc::Peer Known(const std::string& identity) {
  rpc::Peer peer;
  peer.identity = identity;
  return peer;
}

class JobOwnership : public JobManagerTest {
 protected:
  absl::StatusOr<v1::RegisterJobResponse> Register(const rpc::Peer& caller, const std::string& secret = "",
                                                   int64_t generation = 0) {
    v1::RegisterJobRequest job = TestRegistration(1);
    job.set_secret(secret);
    job.set_generation(generation);
    return manager_->registrar().Register(job, caller);
  }
  absl::Status OpenAs(const rpc::Peer& caller, const std::string& secret = "", int64_t generation = 0) {
    v1::Open open;
    open.set_job_id(TestRegistration(1).job_id());
    open.set_generation(generation);
    open.set_secret(secret);
    open.set_incarnation(1);
    return manager_->sessions().Open(open, std::make_shared<Stream>(), caller).status();
  }
  static void ExpectRefused(const absl::Status& status) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("[NOT_THE_OWNER]"));
  }

  const rpc::Peer alice_ = Known("uid:1000"), bob_ = Known("uid:1001"), nobody_ = Known("");
};

TEST_F(JobOwnership, TheOwnerNeedsNoSecret) {
  ASSERT_TRUE(Register(alice_).ok());
  EXPECT_TRUE(Register(alice_).ok());
  EXPECT_TRUE(OpenAs(alice_).ok());
}

TEST_F(JobOwnership, AnotherUserCanNeitherRenewNorOpenTheJob) {
  ASSERT_TRUE(Register(alice_, kSecret).ok());
  for (const rpc::Peer& other : {bob_, nobody_, Known("certificate:alice")}) {
    for (const std::string secret : {"", "ffffffffffffffffffffffffffffffff", "0123456789abcdef"}) {
      ExpectRefused(Register(other, secret).status());
      ExpectRefused(Register(other, secret, 1).status());
      ExpectRefused(OpenAs(other, secret));
    }
  }
  EXPECT_TRUE(OpenAs(alice_).ok()) << "the job is as it was";
}

TEST_F(JobOwnership, TheSecretServesWhoeverHasIt) {
  ASSERT_TRUE(Register(nobody_, kSecret).ok());
  EXPECT_TRUE(Register(nobody_, kSecret).ok());
  EXPECT_TRUE(OpenAs(bob_, kSecret).ok());
  ExpectRefused(OpenAs(nobody_));
}

TEST_F(JobOwnership, AJobWithoutASecretGetsOne) {
  const auto first = Register(nobody_);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->secret().size(), 32u);
  ExpectRefused(OpenAs(nobody_));
  EXPECT_TRUE(OpenAs(nobody_, first->secret()).ok());
  const auto again = Register(nobody_, first->secret());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->secret(), "") << "it is told once";
}

TEST_F(JobOwnership, SurvivesTheController) {
  ASSERT_TRUE(Register(alice_, kSecret).ok());
  Restart();
  ExpectRefused(Register(bob_, "", 1).status());
  ASSERT_TRUE(Register(bob_, kSecret).ok());
  ASSERT_TRUE(Register(alice_).ok());
  EXPECT_THAT(manager_->DebugString(JobId(TestRegistration(1).job_id())), Not(HasSubstr(kSecret)));
}

TEST_F(JobOwnership, TheOwnerChangesTheSecretWithANewGeneration) {
  const std::string other = "fedcba9876543210fedcba9876543210";
  ASSERT_TRUE(Register(alice_, kSecret).ok());
  ASSERT_TRUE(Register(alice_, other).ok()) << "the same generation goes on with the first one";
  EXPECT_TRUE(Register(nobody_, kSecret).ok());
  ASSERT_TRUE(Register(alice_, other, 1).ok());
  Restart();
  EXPECT_TRUE(Register(nobody_, other, 1).ok());
  ExpectRefused(Register(nobody_, kSecret, 1).status());
}

TEST_F(JobOwnership, AJobOfAnOlderJournalBelongsToTheControllersUser) {
  const Ownership unknown;
  EXPECT_TRUE(unknown.Check(ThisProcess(), "").ok());
  ExpectRefused(unknown.Check(Known("uid:12345"), ""));
  ExpectRefused(unknown.Check(nobody_, kSecret));
}

TEST_F(JobOwnership, AGenerationDoesNotLeap) {
  ASSERT_TRUE(Register(alice_).ok());
  for (const int64_t far : {(int64_t{1} << 32) + 1, int64_t{1} << 50, int64_t{1} << 62, INT64_MAX, int64_t{-1}}) {
    const absl::Status refused = Register(alice_, "", far).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << far << ": " << refused;
  }
  EXPECT_TRUE(Register(alice_, "", int64_t{1} << 32).ok()) << "as far as seconds since 1970";
  EXPECT_TRUE(Register(alice_, "", int64_t{1} << 33).ok());
}

TEST_F(JobOwnership, ASecretHasBounds) {
  for (const size_t bytes : {1, 15, 257}) {
    EXPECT_THAT(std::string(Register(alice_, std::string(bytes, 's')).status().message()),
                HasSubstr("[BAD_REGISTRATION] a secret of"));
  }
}

TEST_F(JobOwnership, NamesAreMadePrintable) {
  v1::RegisterJobRequest job = TestRegistration(1);
  job.set_training_job("a\n2026-01-01 forged\x1b[31m");
  job.mutable_modules(0)->set_name("conv\r1");
  ASSERT_TRUE(manager_->registrar().Register(job).ok());
  EXPECT_EQ(manager_->ListJobs().jobs(0).training_job(), "a\\n2026-01-01 forged\\x1b[31m");
  EXPECT_TRUE(manager_->registrar().Register(job).ok()) << "its other ranks say the same";
}

}  // namespace
}  // namespace egeria::controller
