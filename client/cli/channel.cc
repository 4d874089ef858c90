#include "client/cli/channel.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "grpc/support/log.h"
#include "grpcpp/grpcpp.h"
#include "proto/grpc_status.h"

namespace tessera::cli {
namespace {

// A list of jobs holds every model's parameters.
constexpr int kMaxReplyBytes = 256 << 20;

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) return ErrnoStatus(errno, absl::StrCat("TLS file '", path, "'"));
  return text;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const TlsFiles& files) {
  if (files.ca_path.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  ASSIGN_OR_RETURN(options.pem_root_certs, ReadPem(files.ca_path));
  ASSIGN_OR_RETURN(options.pem_cert_chain, ReadPem(files.certificate_path));
  ASSIGN_OR_RETURN(options.pem_private_key, ReadPem(files.key_path));
  return grpc::SslCredentials(options);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const Endpoint& endpoint) {
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::ChannelCredentials> credentials,
                   MakeCredentials(endpoint.tls));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReplyBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // Only flags say where to connect.
  // A live view must not wait minutes for a server that came back.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  return grpc::CreateCustomChannel(endpoint.address, credentials, arguments);
}

void SetDeadline(const Endpoint& endpoint, grpc::ClientContext* context) {
  context->set_deadline(absl::ToChronoTime(absl::Now() + endpoint.timeout));
}

absl::Status CallStatus(const grpc::Status& status, const char* who, const Endpoint& endpoint) {
  return Annotate(FromGrpcStatus(status), absl::StrCat(who, " ", endpoint.address));
}

void SilenceGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args*) {});
}

}  // namespace tessera::cli
