// For tests: an authority with certificates for a server and clients, and a certificate of another
// authority, made with the openssl command. Thread-compatible.
#ifndef TESSERA_NET_TEST_CERTIFICATES_H_
#define TESSERA_NET_TEST_CERTIFICATES_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "net/transport_security.h"

namespace tessera {

class TestCertificates {
 public:
  // In a folder of their own below /tmp. All are for 127.0.0.1.
  // Errors: NotFound  no openssl command; Internal  it failed.
  static absl::StatusOr<std::unique_ptr<TestCertificates>> Make();
  ~TestCertificates();  // Removes the folder.

  TlsFiles server() const { return {folder_ + "/server.pem", folder_ + "/server.key", ca()}; }
  TlsFiles client() const { return FilesOf("client"); }  // Its common name is "client".
  // "client", "other-client"; "worker", "operator" and "reader" have these roles, and the worker's
  // id is "node".
  TlsFiles FilesOf(const std::string& name) const {
    return {absl::StrCat(folder_, "/", name, ".pem"), absl::StrCat(folder_, "/", name, ".key"),
            ca()};
  }
  // Trusts the server, but its own certificate is of the other authority.
  TlsFiles stranger() const { return {folder_ + "/stranger.pem", folder_ + "/stranger.key", ca()}; }
  // The client, which trusts only the other authority.
  TlsFiles client_of_other_ca() const {
    return {folder_ + "/client.pem", folder_ + "/client.key", folder_ + "/other.pem"};
  }
  std::string ca() const { return folder_ + "/ca.pem"; }

 private:
  explicit TestCertificates(std::string folder) : folder_(std::move(folder)) {}

  const std::string folder_;
};

}  // namespace tessera

#endif  // TESSERA_NET_TEST_CERTIFICATES_H_
