#include "common/rpc/certificates.h"

#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "openssl/pem.h"
#include "openssl/x509.h"
#include "tests/support/temp_folder.h"

namespace egeria::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CertificateDates : public ::testing::Test {
 protected:
  // Writes a certificate that nobody has signed, which is enough to have dates.
  void Write(const std::string& path, absl::Duration from, absl::Duration until) {
    X509* const certificate = X509_new();
    const std::time_t now = absl::ToTimeT(now_);
    ASN1_TIME_set(X509_getm_notBefore(certificate), now + absl::ToInt64Seconds(from));
    ASN1_TIME_set(X509_getm_notAfter(certificate), now + absl::ToInt64Seconds(until));
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509_set_pubkey(certificate, key);
    X509_sign(certificate, key, EVP_sha256());
    std::FILE* const file = std::fopen(path.c_str(), "ae");
    PEM_write_X509(file, certificate);
    std::fclose(file);
    EVP_PKEY_free(key);
    X509_free(certificate);
  }
  std::vector<std::string> Troubles() const { return TroublesOf(files_, now_); }

  testing::TempFolder folder_;
  const absl::Time now_ = absl::Now();
  const TlsFiles files_{folder_ / "ca.pem", folder_ / "own.pem", folder_ / "own.key"};
};

TEST_F(CertificateDates, ValidOnesAreNoTrouble) {
  Write(files_.ca, -absl::Hours(1), absl::Hours(24 * 100));
  Write(files_.certificate, -absl::Hours(1), absl::Hours(24 * 100));
  EXPECT_THAT(Troubles(), IsEmpty());
}

TEST_F(CertificateDates, ThoseOutOfTheirTimeAreNamed) {
  Write(files_.ca, -absl::Hours(48), -absl::Hours(24));
  Write(files_.certificate, absl::Hours(1), absl::Hours(24 * 100));
  EXPECT_THAT(Troubles(), ElementsAre(HasSubstr("the certificate " + files_.ca + " expired on "),
                                      HasSubstr("the certificate " + files_.certificate + " is not yet valid")));
}

TEST_F(CertificateDates, EveryOneInAFileCounts) {
  Write(files_.ca, -absl::Hours(1), absl::Hours(24 * 100));
  Write(files_.ca, -absl::Hours(1), absl::Hours(24));
  EXPECT_THAT(Troubles(), ElementsAre(HasSubstr("expires on ")));
}

TEST_F(CertificateDates, AKeyThatEverybodyCanReadIsNamed) {
  std::ofstream(files_.key) << "key";
  chmod(files_.key.c_str(), 0644);
  EXPECT_THAT(Troubles(), ElementsAre(HasSubstr("can read the private key " + files_.key)));
  chmod(files_.key.c_str(), 0640);
  EXPECT_THAT(Troubles(), IsEmpty());
}

}  // namespace
}  // namespace egeria::rpc
