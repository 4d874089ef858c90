// OpenSSL's contexts, for servers. Thread-safe.
#ifndef TESSERA_NET_TLS_CONTEXT_H_
#define TESSERA_NET_TLS_CONTEXT_H_

#include <openssl/ssl.h>

#include <memory>

#include "absl/status/statusor.h"
#include "net/transport_security.h"

namespace tessera {

template <typename T, void (*Free)(T*)>
struct OpenSslFreer {
  void operator()(T* value) const { Free(value); }
};
using SslContext = std::unique_ptr<SSL_CTX, OpenSslFreer<SSL_CTX, SSL_CTX_free>>;
using SslConnection = std::unique_ptr<SSL, OpenSslFreer<SSL, SSL_free>>;

// Of a server whose clients need a certificate of the CA.
// Errors: NotFound, PermissionDenied  a file that cannot be read (names it)
//         InvalidArgument             one that is not of a certificate or key, or a key that is not
//                                     the certificate's (names it)
absl::StatusOr<SslContext> MakeServerContext(const TlsFiles& tls);

}  // namespace tessera

#endif  // TESSERA_NET_TLS_CONTEXT_H_
