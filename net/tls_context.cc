#include "net/tls_context.h"

#include <openssl/err.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace tessera {
namespace {

absl::Status CheckReadable(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  file.peek();
  return file ? absl::OkStatus() : ErrnoStatus(errno == 0 ? EIO : errno, path);
}

absl::Status CheckLoaded(int result, const std::string& path) {
  ERR_clear_error();
  if (result == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": not a PEM file of a certificate or key that fits the others"));
}

}  // namespace

absl::StatusOr<SslContext> MakeServerContext(const TlsFiles& tls) {
  for (const std::string& path : {tls.certificate_path, tls.key_path, tls.ca_path})
    RETURN_IF_ERROR(CheckReadable(path));
  SslContext context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return absl::ResourceExhaustedError("no memory for TLS");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  RETURN_IF_ERROR(
      CheckLoaded(SSL_CTX_use_certificate_chain_file(context.get(), tls.certificate_path.c_str()),
                  tls.certificate_path));
  RETURN_IF_ERROR(CheckLoaded(
      SSL_CTX_use_PrivateKey_file(context.get(), tls.key_path.c_str(), SSL_FILETYPE_PEM),
      tls.key_path));
  RETURN_IF_ERROR(CheckLoaded(SSL_CTX_check_private_key(context.get()), tls.key_path));
  RETURN_IF_ERROR(CheckLoaded(
      SSL_CTX_load_verify_locations(context.get(), tls.ca_path.c_str(), nullptr), tls.ca_path));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // Each connection has a context of its own, so no session is ever found again.
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  return context;
}

}  // namespace tessera
