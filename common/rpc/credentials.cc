#include "common/rpc/credentials.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "common/rpc/certificates.h"
#include "grpcpp/security/tls_credentials_options.h"

namespace egeria::rpc {
namespace {

// A server takes files that have changed for the connections that follow, so soon.
constexpr unsigned kLookAtFilesSeconds = 1;

struct Pem {
  std::string ca, certificate, key;
};

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> ReadPem(const char* what, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || text.str().empty()) {
    return absl::NotFoundError(absl::StrCat("cannot read the TLS ", what, " file '", path, "'",
                                            errno != 0 ? absl::StrCat(": ", std::strerror(errno)) : ""));
  }
  return text.str();
}

absl::StatusOr<Pem> ReadAll(const TlsFiles& tls) {
  if (tls.ca.empty() || tls.certificate.empty() || tls.key.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mutual TLS needs three files, and these are missing:", tls.ca.empty() ? " CA (EGERIA_TLS_CA)" : "",
        tls.certificate.empty() ? " certificate (EGERIA_TLS_CERT)" : "",
        tls.key.empty() ? " private key (EGERIA_TLS_KEY)" : ""));
  }
  Pem pem;
  errno = 0;
  EGERIA_ASSIGN_OR_RETURN(pem.ca, ReadPem("CA", tls.ca));
  EGERIA_ASSIGN_OR_RETURN(pem.certificate, ReadPem("certificate", tls.certificate));
  EGERIA_ASSIGN_OR_RETURN(pem.key, ReadPem("private key", tls.key));
  return pem;
}

}  // namespace

TlsFiles TlsFilesFromEnvironment() {
  return TlsFiles{FromEnvironment("EGERIA_TLS_CA"), FromEnvironment("EGERIA_TLS_CERT"),
                  FromEnvironment("EGERIA_TLS_KEY")};
}

absl::Status CheckTlsFiles(const TlsFiles& tls) { return tls.empty() ? absl::OkStatus() : ReadAll(tls).status(); }

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(const Address& address,
                                                                              const TlsFiles& tls,
                                                                              bool insecure_allowed) {
  if (address.is_unix()) return grpc::InsecureServerCredentials();
  if (tls.empty()) {
    if (address.IsLocal() || insecure_allowed) return grpc::InsecureServerCredentials();
    return NamedError(absl::StatusCode::kFailedPrecondition, "INSECURE_ADDRESS", "other machines could reach ",
                      address.ToString(),
                      ": give certificates for mutual TLS (--tls-ca, --tls-certificate, --tls-key, or EGERIA_TLS_CA, "
                      "EGERIA_TLS_CERT, EGERIA_TLS_KEY), listen on a Unix socket or on 127.0.0.1, or say "
                      "--insecure to let everybody on the network in");
  }
  EGERIA_RETURN_IF_ERROR(ReadAll(tls).status());
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(tls.key, tls.certificate, tls.ca,
                                                                           kLookAtFilesSeconds));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(const Address& address,
                                                                                const TlsFiles& tls) {
  if (address.is_unix() || tls.empty()) return grpc::InsecureChannelCredentials();
  EGERIA_ASSIGN_OR_RETURN(Pem pem, ReadAll(tls));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(pem.ca);
  options.pem_cert_chain = std::move(pem.certificate);
  options.pem_private_key = std::move(pem.key);
  return grpc::SslCredentials(options);
}

absl::Status ExplainRefusal(const absl::Status& failure, const Address& address, const TlsFiles& tls) {
  const absl::string_view message = failure.message();
  if (!absl::IsUnavailable(failure) || address.is_unix() || !absl::StrContains(message, "failed to connect")) {
    return failure;
  }
  std::string why;
  if (absl::StrContains(message, "wrong version number")) {
    why =
        "the controller has no certificates; give it some (--tls-ca, --tls-certificate, --tls-key), or unset "
        "EGERIA_TLS_CA, EGERIA_TLS_CERT and EGERIA_TLS_KEY here";
  } else if (absl::StrContains(message, "certificate verify failed")) {
    why = absl::StrCat("the controller's certificate is not signed by an authority in ", tls.ca,
                       " (EGERIA_TLS_CA), or its time is over or has not come");
  } else if (absl::StrContains(message, "is not in peer certificate") || absl::StrContains(message, "Hostname")) {
    why = absl::StrCat("the controller's certificate does not name ", address.host);
  } else if (!absl::StrContains(message, "Socket closed") && !absl::StrContains(message, "Connection reset")) {
    return failure;
  } else if (tls.empty()) {
    why = "it may take only those who show a certificate: set EGERIA_TLS_CA, EGERIA_TLS_CERT and EGERIA_TLS_KEY";
  } else {
    why = absl::StrCat("it may not trust ", tls.certificate, " (EGERIA_TLS_CERT): its --tls-ca must have signed it");
    for (const std::string& trouble : TroublesOf(tls, absl::Now())) absl::StrAppend(&why, "; ", trouble);
  }
  return absl::Status(failure.code(), absl::StrCat(message, "; ", why));
}

}  // namespace egeria::rpc
