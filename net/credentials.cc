#include "net/credentials.h"

#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"

namespace tessera {
namespace {

// gRPC itself says nothing of what is wrong with a file; so the form at least is looked at here.
absl::StatusOr<std::string> ReadPem(const std::string& path, absl::string_view label) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno, absl::StrCat("TLS file '", path, "'"));
  std::ostringstream text;
  text << file.rdbuf();
  std::string pem = text.str();
  if (absl::StrContains(pem, "-----BEGIN ") && absl::StrContains(pem, label)) return pem;
  return absl::InvalidArgumentError(
      absl::StrCat("TLS file '", path, "': has no '", label, "' in PEM form"));
}

struct PemTexts {
  std::string certificate;
  std::string key;
  std::string ca;
};

absl::StatusOr<PemTexts> ReadAll(const TlsFiles& files) {
  PemTexts texts;
  ASSIGN_OR_RETURN(texts.ca, ReadPem(files.ca_path, "CERTIFICATE-----"));
  ASSIGN_OR_RETURN(texts.certificate, ReadPem(files.certificate_path, "CERTIFICATE-----"));
  ASSIGN_OR_RETURN(texts.key, ReadPem(files.key_path, "PRIVATE KEY-----"));
  return texts;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const DialOptions& options) {
  ASSIGN_OR_RETURN(
      const Protection protection,
      ChooseProtection(Side::kDial, options.address, options.tls, options.insecure_connect));
  if (protection == Protection::kPlain) return grpc::InsecureChannelCredentials();
  ASSIGN_OR_RETURN(PemTexts texts, ReadAll(options.tls));
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = std::move(texts.ca);
  ssl.pem_cert_chain = std::move(texts.certificate);
  ssl.pem_private_key = std::move(texts.key);
  return grpc::SslCredentials(ssl);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const std::string& listen_address, const TlsFiles& tls, bool insecure_listen) {
  ASSIGN_OR_RETURN(const Protection protection,
                   ChooseProtection(Side::kListen, listen_address, tls, insecure_listen));
  if (protection == Protection::kPlain) return grpc::InsecureServerCredentials();
  ASSIGN_OR_RETURN(PemTexts texts, ReadAll(tls));
  grpc::SslServerCredentialsOptions ssl(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ssl.pem_root_certs = std::move(texts.ca);
  ssl.pem_key_cert_pairs.push_back({std::move(texts.key), std::move(texts.certificate)});
  return grpc::SslServerCredentials(ssl);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const DialOptions& options,
                                                           grpc::ChannelArguments arguments) {
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                   MakeChannelCredentials(options));
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // Only flags say where to connect.
  return grpc::CreateCustomChannel(options.address, credentials, arguments);
}

absl::Status CheckDialOptions(const DialOptions& options) {
  return MakeChannelCredentials(options).status();
}

}  // namespace tessera
