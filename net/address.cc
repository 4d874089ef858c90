#include "net/address.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

// As names are compared: without regard to case, and to the dot at the end of a full name.
std::string Normalized(absl::string_view host) {
  absl::ConsumeSuffix(&host, ".");
  return absl::AsciiStrToLower(host);
}

bool IsLoopback(const std::string& host) {
  // By its name alone: what a resolver answers must not decide whether a port is protected.
  if (Normalized(host) == "localhost") return true;
  in_addr v4 = {};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6 = {};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool IsTooLargeForAPort(absl::string_view port) {
  uint64_t value = 0;
  const bool is_number =
      !port.empty() && port.find_first_not_of("0123456789") == absl::string_view::npos;
  return is_number && (!absl::SimpleAtoi(port, &value) || value > 65535);
}

}  // namespace

bool IsThisMachine(absl::string_view host) {
  char own[HOST_NAME_MAX + 1] = {};
  return gethostname(own, sizeof(own) - 1) == 0 && own[0] != '\0' &&
         Normalized(host) == Normalized(own);
}

absl::StatusOr<ServerAddress> ParseServerAddress(absl::string_view text) {
  ServerAddress address;
  absl::string_view path = text;
  if (absl::ConsumePrefix(&path, "unix:")) {
    if (path.empty())
      return absl::InvalidArgumentError(absl::StrCat("address '", text, "': no path"));
    address.reach = Reach::kUnix;
    address.path = std::string(path);
    return address;
  }
  // From the right: an IPv6 host has colons of its own.
  const size_t colon = text.rfind(':');
  const absl::string_view port = colon == absl::string_view::npos ? "" : text.substr(colon + 1);
  if (IsTooLargeForAPort(port)) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", text, "': port ", port, " is above 65535"));
  }
  if (colon == absl::string_view::npos || colon == 0 || !absl::SimpleAtoi(port, &address.port) ||
      address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", text, "': must be host:port or unix:path"));
  }
  absl::string_view host = text.substr(0, colon);
  const bool bracketed = absl::StartsWith(host, "[") && absl::EndsWith(host, "]");
  if (bracketed) host = host.substr(1, host.size() - 2);
  // Without brackets the last group would be taken for a port.
  if (host.empty() || (!bracketed && absl::StrContains(host, ':'))) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", text, "': must be host:port, IPv6 hosts in brackets"));
  }
  address.host = std::string(host);
  address.reach = IsLoopback(address.host) ? Reach::kLoopback : Reach::kNetwork;
  return address;
}

}  // namespace tessera
