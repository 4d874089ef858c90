#include "worker/comm/tcp/frame.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

constexpr uint32_t kGreetingMagic = 0x47535354;  // "TSSG"
constexpr uint32_t kFrameMagic = 0x46535354;     // "TSSF"
constexpr uint32_t kMaxRank = 1 << 20;
constexpr int64_t kMaxFrameBytes = int64_t{1} << 56;

// Little-endian on every machine, byte by byte, so that alignment does not matter.
template <typename T>
void Store(T value, uint8_t* to) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<uint8_t>(value >> (8 * i));
}

template <typename T>
T Load(const uint8_t* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(from[i]) << (8 * i);
  return value;
}

}  // namespace

Greeting EncodeGreeting(const Hello& hello) {
  Greeting greeting;
  Store(kGreetingMagic, &greeting[0]);
  Store(hello.epoch, &greeting[4]);
  Store(static_cast<uint32_t>(hello.from), &greeting[8]);
  Store(static_cast<uint32_t>(hello.to), &greeting[12]);
  std::copy(hello.secret.begin(), hello.secret.end(), &greeting[16]);
  return greeting;
}

// Any process that reaches the port may send one. Whom it is from is decided by the secret.
std::optional<Hello> DecodeGreeting(const Greeting& greeting) {
  const uint32_t from = Load<uint32_t>(&greeting[8]), to = Load<uint32_t>(&greeting[12]);
  // The bounds keep the casts to int within range.
  if (Load<uint32_t>(&greeting[0]) != kGreetingMagic || from > kMaxRank || to > kMaxRank) {
    return std::nullopt;
  }
  Hello hello = {Load<uint32_t>(&greeting[4]), static_cast<int>(from), static_cast<int>(to), {}};
  std::copy(&greeting[16], &greeting[16] + hello.secret.size(), hello.secret.begin());
  return hello;
}

FrameHeader EncodeFrameHeader(const Frame& frame) {
  FrameHeader header;
  Store(kFrameMagic, &header.bytes[0]);
  Store(static_cast<uint32_t>(frame.kind), &header.bytes[4]);
  Store(frame.digest, &header.bytes[8]);
  Store(frame.sequence, &header.bytes[16]);
  Store(static_cast<uint64_t>(frame.bytes), &header.bytes[24]);
  return header;
}

std::optional<Frame> DecodeFrameHeader(const FrameHeader& header) {
  const uint32_t kind = Load<uint32_t>(&header.bytes[4]);
  // An announced length is untrusted. The bound keeps it positive as int64, and sums of it too.
  const uint64_t bytes = Load<uint64_t>(&header.bytes[24]);
  if (Load<uint32_t>(&header.bytes[0]) != kFrameMagic || bytes > kMaxFrameBytes ||
      (kind != static_cast<uint32_t>(FrameKind::kExchange) &&
       kind != static_cast<uint32_t>(FrameKind::kFailure))) {
    return std::nullopt;
  }
  return Frame{static_cast<FrameKind>(kind), Load<uint64_t>(&header.bytes[8]),
               Load<uint64_t>(&header.bytes[16]), static_cast<int64_t>(bytes)};
}

std::string FormatPeerAddress(const PeerAddress& address) {
  const std::string secret(address.secret.begin(), address.secret.end());
  return absl::StrCat(address.host, " ", address.port, " ", absl::BytesToHexString(secret));
}

absl::StatusOr<PeerAddress> ParsePeerAddress(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  PeerAddress address;
  uint32_t port = 0;
  const bool hex = parts.size() == 3 && parts[2].size() == 2 * address.secret.size() &&
                   std::all_of(parts[2].begin(), parts[2].end(),
                               [](unsigned char c) { return absl::ascii_isxdigit(c); });
  // A secret that is too short would be padded, and easier to guess.
  if (!hex || parts[0].empty() || !absl::SimpleAtoi(parts[1], &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError("not the address of a rank: want IP PORT SECRET");
  }
  address.host = parts[0];
  address.port = static_cast<uint16_t>(port);
  const std::string secret = absl::HexStringToBytes(parts[2]);
  std::copy(secret.begin(), secret.end(), address.secret.begin());
  return address;
}

}  // namespace tessera
