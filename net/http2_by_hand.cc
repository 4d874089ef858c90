#include "net/http2_by_hand.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera::http2 {
namespace {

std::string BigEndian(uint32_t value, int num_bytes) {
  std::string bytes;
  for (int i = num_bytes - 1; i >= 0; --i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

std::string Text(absl::string_view text) {  // Of a header.
  return absl::StrCat(BigEndian(text.size(), 1), text);
}

int NumRefused(const std::string& received) {
  constexpr uint8_t kRefusedStream = 7;
  int count = 0;
  for (size_t at = 0; at + 13 <= received.size();) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(received[at + i]); };
    if (byte(3) == kReset && byte(12) == kRefusedStream) ++count;
    at += 9 + (byte(0) << 16 | byte(1) << 8 | byte(2));
  }
  return count;
}

}  // namespace

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  return absl::StrCat(BigEndian(payload.size(), 3), BigEndian(type, 1), BigEndian(flags, 1),
                      BigEndian(stream, 4), payload);
}

std::string Preface(absl::string_view settings) {
  return absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(kSettings, 0, 0, settings));
}

std::string Acknowledge() { return Frame(kSettings, kEndStream, 0, ""); }

std::string CallHeaders(uint32_t stream, absl::string_view method) {
  // POST and http of HPACK's table, :path and :authority by their places in it, content-type, te.
  return Frame(
      kHeaders, kEndHeaders, stream,
      absl::StrCat("\x83\x86", "\x04", Text(method), "\x01", Text("localhost"), "\x0f\x10",
                   Text("application/grpc"), BigEndian(0, 1), Text("te"), Text("trailers")));
}

std::string Reset(uint32_t stream) { return Frame(kReset, 0, stream, BigEndian(8, 4)); }

std::string BeginCall(uint32_t stream, absl::string_view method, uint32_t announced_bytes,
                      absl::string_view bytes) {
  const bool is_all = bytes.size() == announced_bytes;
  return CallHeaders(stream, method) +
         Frame(kData, is_all ? kEndStream : 0, stream,
               absl::StrCat(BigEndian(0, 1), BigEndian(announced_bytes, 4), bytes));
}

Connection::Connection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const timeval timeout = {20, 0};
  setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Where nobody listens, the first exchange finds it ended.
  (void)connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
}

Connection::Answer Connection::Exchange(const std::string& bytes) const {
  // A server answers a ping that it has read before it sends what it has refused until then.
  std::string received;
  for (const std::string ping : {"PING ONE", "PING TWO"}) {
    const std::string to_send = (ping == "PING ONE" ? bytes : "") + Frame(kPing, 0, 0, ping);
    if (send(fd_.get(), to_send.data(), to_send.size(), MSG_NOSIGNAL) < 0) return {true};
    while (!absl::StrContains(received, ping)) {
      char part[65536];
      const ssize_t count = recv(fd_.get(), part, sizeof(part), 0);
      if (count <= 0) return {true};
      received.append(part, count);
    }
  }
  return {false, NumRefused(received)};
}

bool Connection::Send(const std::string& bytes) const {
  return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace tessera::http2
