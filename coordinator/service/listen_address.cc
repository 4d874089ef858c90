#include "coordinator/service/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"

namespace tessera::coordinator {

absl::StatusOr<ListenAddress> ParseListenAddress(absl::string_view text) {
  const size_t colon = text.rfind(':');
  ListenAddress address;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &address.port) || address.port < 0 ||
      address.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen address '", text, "': must be host:port"));
  }
  absl::string_view host = text.substr(0, colon);
  const bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || (!bracketed && absl::StrContains(host, ':'))) {
    return absl::InvalidArgumentError(
        absl::StrCat("listen address '", text, "': must be host:port, IPv6 hosts in brackets"));
  }
  address.host = std::string(host);
  // Only a dotted number can be told to be loopback without asking a resolver.
  const bool dotted_number = host.find_first_not_of("0123456789.") == absl::string_view::npos;
  address.is_loopback =
      host == "localhost" || host == "::1" || (dotted_number && absl::StartsWith(host, "127."));
  return address;
}

absl::Status DiagnoseListenFailure(const ListenAddress& address, absl::string_view text) {
  const std::string what = absl::StrCat("listen on '", text, "'");
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int code =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (code != 0) return absl::NotFoundError(absl::StrCat(what, ": ", gai_strerror(code)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const UniqueFd fd(socket(each->ai_family, each->ai_socktype, each->ai_protocol));
    if (!fd.valid()) continue;
    if (bind(fd.get(), each->ai_addr, each->ai_addrlen) != 0) return ErrnoStatus(errno, what);
    if (listen(fd.get(), 1) != 0) return ErrnoStatus(errno, what);
  }
  return absl::UnavailableError(absl::StrCat(what, ": gRPC could not start there"));
}

}  // namespace tessera::coordinator
