#include "tests/support/certificates.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "common/base/status.h"

namespace egeria::testing {

absl::StatusOr<std::unique_ptr<Certificates>> Certificates::Make() {
  std::unique_ptr<Certificates> made(new Certificates());
  for (const char* name : {"ours", "theirs"}) EGERIA_RETURN_IF_ERROR(made->MakeAuthority(name));
  return made;
}

absl::Status Certificates::MakeAuthority(const std::string& name) const {
  const std::string at = Path(name);
  std::ofstream(at + ".ext") << "subjectAltName=IP:127.0.0.1,DNS:localhost\n";
  const std::string key = " -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes ";
  const std::string command = "{ openssl req -x509 -days 2 -subj /CN=ca-" + name + key + "-keyout " + at +
                              "-ca.key -out " + at + "-ca.pem && openssl req -subj /CN=" + name + key + "-keyout " +
                              at + ".key -out " + at + ".csr && openssl x509 -req -days 2 -CAcreateserial -in " + at +
                              ".csr -CA " + at + "-ca.pem -CAkey " + at + "-ca.key -extfile " + at + ".ext -out " + at +
                              ".pem; } >" + at + ".log 2>&1";
  if (std::system(command.c_str()) == 0) return absl::OkStatus();
  std::ostringstream said;
  said << std::ifstream(at + ".log").rdbuf();
  return absl::InternalError(absl::StrCat("openssl made no certificates: ", said.str()));
}

rpc::TlsFiles Certificates::Of(const std::string& ca, const std::string& identity) const {
  return {Path(ca + "-ca.pem"), Path(identity + ".pem"), Path(identity + ".key")};
}

}  // namespace egeria::testing
