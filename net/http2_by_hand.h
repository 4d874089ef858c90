// A client that speaks HTTP/2 by hand, to do what no client of gRPC does. What makes bytes is pure.
#ifndef TESSERA_NET_HTTP2_BY_HAND_H_
#define TESSERA_NET_HTTP2_BY_HAND_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace tessera::http2 {

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
};
constexpr uint8_t kEndStream = 1;  // Of kData; of kSettings and kPing: an acknowledgement.
constexpr uint8_t kEndHeaders = 4;

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload);
// The first bytes of a connection. `settings`: a payload of kSettings.
std::string Preface(absl::string_view settings = "");
// Of the other side's settings, which it may not have read.
std::string Acknowledge();
// The headers of a call of `method`, "/package.Service/Method", of less than 127 bytes; its message
// is to follow.
std::string CallHeaders(uint32_t stream, absl::string_view method);
std::string Reset(uint32_t stream);
// Headers, and a message that announces to have so many bytes, with the first ones. The client's
// side of the call ends here if these are all.
std::string BeginCall(uint32_t stream, absl::string_view method, uint32_t announced_bytes,
                      absl::string_view bytes);

// To a server on this machine's loopback. Confined to one thread.
class Connection {
 public:
  explicit Connection(int port);

  struct Answer {
    bool has_ended = false;  // The connection; also after 20 s of silence.
    int num_refused = 0;     // Of the calls.
  };
  // Once the server has dealt with all of `bytes`. It is pinged twice each time.
  Answer Exchange(const std::string& bytes) const;
  // Reads nothing. False: not all was taken.
  bool Send(const std::string& bytes) const;

 private:
  const UniqueFd fd_;
};

}  // namespace tessera::http2

#endif  // TESSERA_NET_HTTP2_BY_HAND_H_
