// Keys and X.509 certificates of a private authority, for a cluster that needs TLS and has no
// authority of its own. Keys are ECDSA P-256. Stateless; thread-safe.
#ifndef TESSERA_CLIENT_CLI_CERTIFICATES_H_
#define TESSERA_CLIENT_CLI_CERTIFICATES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tessera::cli {

// PEM.
struct KeyAndCertificate {
  std::string key;
  std::string certificate;
};

struct CertificateRequest {
  std::string common_name;         // 1 to 64 bytes.
  std::vector<std::string> hosts;  // IP addresses or names that it is for; may be none.
  absl::Duration valid_for;        // From now on.
  bool may_serve = false;          // Else it is a client's alone.
};

// An authority: signs its own certificate. Errors: Internal  names what OpenSSL refused.
absl::StatusOr<KeyAndCertificate> MakeAuthority(absl::Duration valid_for);
// Signed by `authority`, for servers and clients.
// Errors: InvalidArgument  the authority's PEM cannot be read, its key is not its certificate's, or
//                          a host or the common name is malformed (named); Internal.
absl::StatusOr<KeyAndCertificate> MakeCertificate(const KeyAndCertificate& authority,
                                                  const CertificateRequest& request);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_CERTIFICATES_H_
