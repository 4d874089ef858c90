#include "net/end_connection.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

// As gRPC writes it; empty: it has no other side on TCP.
std::string PeerOf(int descriptor) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    sockaddr_in ip4 = {};
    memcpy(&ip4, &address, sizeof(ip4));
    inet_ntop(AF_INET, &ip4.sin_addr, text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(ip4.sin_port));
  }
  if (address.ss_family != AF_INET6) return "";
  sockaddr_in6 ip6 = {};
  memcpy(&ip6, &address, sizeof(ip6));
  if (IN6_IS_ADDR_V4MAPPED(&ip6.sin6_addr)) {
    inet_ntop(AF_INET, &ip6.sin6_addr.s6_addr[12], text, sizeof(text));
    return absl::StrCat("ipv4:", text, ":", ntohs(ip6.sin6_port));
  }
  inet_ntop(AF_INET6, &ip6.sin6_addr, text, sizeof(text));
  return absl::StrCat("ipv6:%5B", text, "%5D:", ntohs(ip6.sin6_port));
}

}  // namespace

bool EndConnection(absl::string_view peer) {
  int number = -1;
  // Not closed: gRPC owns it, and by the time it closes the number could be another file's.
  if (absl::ConsumePrefix(&peer, "fd:"))
    return absl::SimpleAtoi(peer, &number) && shutdown(number, SHUT_RDWR) == 0;
  if (peer.empty()) return false;
  const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(opendir("/proc/self/fd"), closedir);
  if (descriptors == nullptr) return false;
  while (const dirent* entry = readdir(descriptors.get())) {
    if (absl::SimpleAtoi(entry->d_name, &number) && PeerOf(number) == peer)
      return shutdown(number, SHUT_RDWR) == 0;
  }
  return false;
}

}  // namespace tessera
