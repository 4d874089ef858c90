#include "base/random_bytes.h"

#include <sys/random.h>

#include <cerrno>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace tessera {

std::string RandomBytes(int count) {
  std::string bytes(count, '\0');
  size_t got = 0;
  while (got < bytes.size()) {
    const ssize_t more = getrandom(bytes.data() + got, bytes.size() - got, 0);
    if (more < 0 && errno == EINTR) continue;
    // Secrets are made of these, so the process must not go on without them.
    TESSERA_CHECK(more > 0);
    got += more;
  }
  return bytes;
}

std::string RandomHex(int count) { return absl::BytesToHexString(RandomBytes(count)); }

}  // namespace tessera
