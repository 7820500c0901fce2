#include "common/rpc/certificates.h"

#include <sys/stat.h>

#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "openssl/pem.h"
#include "openssl/x509.h"

namespace egeria::rpc {
namespace {

constexpr absl::Duration kSoon = absl::Hours(7 * 24);

absl::Time TimeOf(const ASN1_TIME* time) {
  std::tm fields = {};
  return ASN1_TIME_to_tm(time, &fields) == 1 ? absl::FromTM(fields, absl::UTCTimeZone()) : absl::InfiniteFuture();
}

std::string DateText(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone()); }

// Looks at every certificate in the file.
void CheckDates(const std::string& path, absl::Time now, std::vector<std::string>* troubles) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"), std::fclose);
  if (file == nullptr) return;
  while (X509* const read = PEM_read_X509(file.get(), nullptr, nullptr, nullptr)) {
    const std::unique_ptr<X509, void (*)(X509*)> certificate(read, X509_free);
    const absl::Time from = TimeOf(X509_get0_notBefore(read));
    const absl::Time until = TimeOf(X509_get0_notAfter(read));
    if (until <= now) {
      troubles->push_back(absl::StrCat("the certificate ", path, " expired on ", DateText(until)));
    } else if (from > now) {
      troubles->push_back(
          absl::StrCat("the certificate ", path, " is not yet valid: it is from ", DateText(from), " on"));
    } else if (until - now < kSoon) {
      troubles->push_back(absl::StrCat("the certificate ", path, " expires on ", DateText(until)));
    }
  }
}

}  // namespace

std::vector<std::string> TroublesOf(const TlsFiles& tls, absl::Time now) {
  std::vector<std::string> troubles;
  CheckDates(tls.ca, now, &troubles);
  CheckDates(tls.certificate, now, &troubles);
  struct stat info;
  if (stat(tls.key.c_str(), &info) == 0 && (info.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    troubles.push_back(absl::StrCat("every user of this machine can read the private key ", tls.key,
                                    ": take the permission away (chmod 600)"));
  }
  return troubles;
}

}  // namespace egeria::rpc
