#include "net/transport_security.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "net/address.h"

namespace tessera {
namespace {

absl::Status Refuse(Side side, absl::string_view address) {
  if (side == Side::kListen) {
    return absl::FailedPreconditionError(
        absl::StrCat("listen address '", address,
                     "' can be reached from other nodes: give TLS certificate, key and CA, "
                     "or permit it with --insecure-listen"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("address '", address,
                   "' is not on this node: give TLS certificate, key and CA, or permit an "
                   "unprotected connection with --insecure-connect"));
}

}  // namespace

absl::StatusOr<Protection> ChooseProtection(Side side, absl::string_view address,
                                            const TlsFiles& tls, bool permit_insecure) {
  ASSIGN_OR_RETURN(const ServerAddress parsed, ParseServerAddress(address));
  if (!tls.empty() && !tls.complete()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TLS needs all of certificate, key and CA; missing:",
        tls.certificate_path.empty() ? " --tls-cert" : "", tls.key_path.empty() ? " --tls-key" : "",
        tls.ca_path.empty() ? " --tls-ca" : ""));
  }
  // The file's mode and the kernel's word about the peer protect it.
  if (parsed.reach == Reach::kUnix) return Protection::kPlain;
  if (tls.complete()) return Protection::kMutualTls;
  if (parsed.reach == Reach::kLoopback || permit_insecure) return Protection::kPlain;
  // A connection to this name stays on this machine. A server that listens there may be reached
  // from others.
  if (side == Side::kDial && IsThisMachine(parsed.host)) return Protection::kPlain;
  return Refuse(side, address);
}

}  // namespace tessera
