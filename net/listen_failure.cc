#include "net/listen_failure.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"

namespace tessera {

absl::Status DiagnoseListenFailure(const ServerAddress& address, absl::string_view text) {
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
    // gRPC does not say why it failed, so the same steps are tried here.
    const UniqueFd fd(socket(each->ai_family, each->ai_socktype, each->ai_protocol));
    if (!fd.valid()) continue;
    if (bind(fd.get(), each->ai_addr, each->ai_addrlen) != 0) return ErrnoStatus(errno, what);
    if (listen(fd.get(), 1) != 0) return ErrnoStatus(errno, what);
  }
  return absl::UnavailableError(absl::StrCat(what, ": gRPC could not start there"));
}

}  // namespace tessera
