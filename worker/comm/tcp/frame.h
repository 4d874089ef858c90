// The bytes of PeerMesh's connections: greetings, frame headers and addresses. Little-endian
// numbers at fixed places; what comes in is untrusted. Pure; thread-safe.
//
//   greeting   magic u32 | epoch u32 | from u32 | to u32 | secret 16 bytes
//   header     magic u32 | kind u32 | digest u64 | sequence u64 | bytes u64
//   address    "IP PORT SECRET", the secret in hexadecimal digits
#ifndef TESSERA_WORKER_COMM_TCP_FRAME_H_
#define TESSERA_WORKER_COMM_TCP_FRAME_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace tessera {

using Secret = std::array<uint8_t, 16>;
using Greeting = std::array<uint8_t, 32>;
struct FrameHeader {
  std::array<uint8_t, 32> bytes;
};

struct Hello {
  uint32_t epoch = 0;
  int from = 0;
  int to = 0;
  Secret secret = {};
};
Greeting EncodeGreeting(const Hello& hello);
std::optional<Hello> DecodeGreeting(const Greeting& greeting);

enum class FrameKind : uint32_t { kExchange = 1, kFailure = 2 };
struct Frame {
  FrameKind kind = FrameKind::kExchange;
  uint64_t digest = 0;
  uint64_t sequence = 0;
  int64_t bytes = 0;  // That follow.
};
inline constexpr int64_t kMaxFailureBytes = 512;
FrameHeader EncodeFrameHeader(const Frame& frame);
// nullopt: not a header, or one with a number that no frame has.
std::optional<Frame> DecodeFrameHeader(const FrameHeader& header);

struct PeerAddress {
  std::string host;  // An IP address.
  uint16_t port = 0;
  Secret secret = {};
};
std::string FormatPeerAddress(const PeerAddress& address);
// Errors: InvalidArgument  it is not of this form
absl::StatusOr<PeerAddress> ParsePeerAddress(const std::string& text);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_TCP_FRAME_H_
