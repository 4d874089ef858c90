#include "net/credentials.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/support/client_interceptor.h"
#include "net/access_token.h"
#include "net/address.h"
#include "net/caller_version.h"

namespace tessera {
namespace {

constexpr int64_t kMaxPemBytes = 1 << 20;

// A regular file and no more than `kMaxPemBytes` of it: a pipe or device would never end.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  const std::string what = absl::StrCat("TLS file '", path, "'");
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, what);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, what);
  if (S_ISDIR(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(what, ": is a folder"));
  if (!S_ISREG(info.st_mode))
    return absl::InvalidArgumentError(absl::StrCat(what, ": is not a regular file"));
  std::string text(kMaxPemBytes + 1, '\0');
  int64_t size_bytes = 0;
  while (size_bytes <= kMaxPemBytes) {
    const ssize_t got = read(fd.get(), text.data() + size_bytes, text.size() - size_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, what);
    if (got == 0) break;
    size_bytes += got;
  }
  if (size_bytes > kMaxPemBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": has more than ", kMaxPemBytes, " bytes"));
  }
  text.resize(size_bytes);
  return text;
}

// gRPC itself says nothing of what is wrong with a file; so the form at least is looked at here.
absl::StatusOr<std::string> ReadPem(const std::string& path, absl::string_view label) {
  ASSIGN_OR_RETURN(std::string pem, ReadSmallFile(path));
  if (absl::StrContains(pem, "-----BEGIN ENCRYPTED PRIVATE KEY-----") ||
      absl::StrContains(pem, "Proc-Type: 4,ENCRYPTED")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TLS file '", path, "': its private key is encrypted; one without a passphrase is needed"));
  }
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

// What is too much for gRPC's number is for ever there.
int KeepaliveMs(absl::Duration duration) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1'000,
                                              std::numeric_limits<int>::max()));
}

// Puts this user's token on a call.
class TokenSender : public grpc::experimental::Interceptor {
 public:
  explicit TokenSender(std::string token) : token_(std::move(token)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (!token_.empty() &&
        methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({kTokenMetadata, token_});
    }
    methods->Proceed();
  }

 private:
  const std::string token_;
};

// Of one channel. The server may make the file after the channel was opened, so it is looked for
// until it is there. Thread-safe.
class TokenSenders : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  TokenSenders(std::string path, std::string token)
      : path_(std::move(path)), token_(std::move(token)) {}

  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    absl::MutexLock lock(&mu_);
    if (token_.empty()) token_ = ReadAccessToken(path_).value_or("");
    return new TokenSender(token_);
  }

 private:
  const std::string path_;
  absl::Mutex mu_;
  std::string token_ ABSL_GUARDED_BY(mu_);
};

using Interceptors =
    std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>>;

// What a channel to this server needs besides its credentials. A server that requires a token says
// so if this user has none.
absl::StatusOr<Interceptors> InterceptorsFor(const DialOptions& options) {
  Interceptors interceptors;
  ASSIGN_OR_RETURN(const ServerAddress address, ParseServerAddress(options.address));
  // The token goes to the coordinator alone, and only where nothing better says who calls.
  if (!options.is_coordinator || address.reach == Reach::kUnix || !options.tls.empty())
    return interceptors;
  const absl::StatusOr<std::string> path = AccessTokenPath();
  if (!path.ok()) return interceptors;
  absl::StatusOr<std::string> token = ReadAccessToken(*path);
  // A file that cannot be used is an error now. One that is not there may still come.
  if (!token.ok() && !absl::IsNotFound(token.status())) return token.status();
  interceptors.push_back(
      std::make_unique<TokenSenders>(*path, token.ok() ? *std::move(token) : std::string()));
  return interceptors;
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
  // A client without a certificate of this CA does not get in.
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
  arguments.SetUserAgentPrefix(OwnUserAgent());
  // Bounds what is under way. gRPC would let it grow with the line's speed.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  ASSIGN_OR_RETURN(Interceptors interceptors, InterceptorsFor(options));
  if (interceptors.empty())
    return grpc::CreateCustomChannel(options.address, credentials, arguments);
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      options.address, credentials, arguments, std::move(interceptors));
}

void SetKeepalive(const Keepalive& keepalive, grpc::ChannelArguments* arguments) {
  arguments->SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, KeepaliveMs(keepalive.interval));
  arguments->SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KeepaliveMs(keepalive.timeout));
  arguments->SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // A reader sends nothing else.
}

void PermitPings(grpc::ServerBuilder* builder) {
  // By default gRPC ends the connection of a client that pings more often than each five minutes.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1'000);
}

void SetKeepalive(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  PermitPings(builder);
}

absl::Status CheckDialOptions(const DialOptions& options) {
  return MakeChannelCredentials(options).status();
}

}  // namespace tessera
