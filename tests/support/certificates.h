#ifndef EGERIA_TESTS_SUPPORT_CERTIFICATES_H_
#define EGERIA_TESTS_SUPPORT_CERTIFICATES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/tls_files.h"
#include "tests/support/temp_folder.h"

namespace egeria::testing {

// Two certificate authorities, "ours" and "theirs", and by each a certificate of the same name for 127.0.0.1
// and localhost. They are made anew by the openssl program, in a folder that goes with the object.
// Thread-compatible.
class Certificates {
 public:
  // Errors: INTERNAL with what openssl said.
  static absl::StatusOr<std::unique_ptr<Certificates>> Make();

  // The files of a side that trusts the authority `ca` and shows the certificate `identity`.
  rpc::TlsFiles Of(const std::string& ca, const std::string& identity) const;

  // Where a file of this name would lie.
  std::string Path(const std::string& name) const { return folder_ / name; }

 private:
  Certificates() = default;
  absl::Status MakeAuthority(const std::string& name) const;

  TempFolder folder_;
};

}  // namespace egeria::testing

#endif  // EGERIA_TESTS_SUPPORT_CERTIFICATES_H_
