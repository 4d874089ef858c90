// What comes over a connection between ranks of several workers.
#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "tests/fuzz/fuzz_targets.h"
#include "worker/comm/tcp/frame.h"

namespace tessera::fuzz {

// What is read is what would be written; no number is one that nobody can have.
void MeshFrames(absl::string_view bytes) {
  Greeting greeting = {};
  memcpy(greeting.data(), bytes.data(), std::min(bytes.size(), greeting.size()));
  if (const auto hello = DecodeGreeting(greeting)) {
    TESSERA_CHECK(hello->from >= 0 && hello->to >= 0);
    TESSERA_CHECK(EncodeGreeting(*hello) == greeting);
  }
  FrameHeader header = {};
  memcpy(header.bytes.data(), bytes.data(), std::min(bytes.size(), header.bytes.size()));
  if (const auto frame = DecodeFrameHeader(header)) {
    TESSERA_CHECK(frame->bytes >= 0);
    TESSERA_CHECK(EncodeFrameHeader(*frame).bytes == header.bytes);
  }
  if (const auto address = ParsePeerAddress(std::string(bytes)); address.ok()) {
    const auto again = ParsePeerAddress(FormatPeerAddress(*address));
    TESSERA_CHECK(again.ok() && again->host == address->host && again->port == address->port &&
                  again->secret == address->secret);
  }
}

}  // namespace tessera::fuzz
