#include "net/http2_by_hand.h"

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

}  // namespace

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view payload) {
  return absl::StrCat(BigEndian(payload.size(), 3), BigEndian(type, 1), BigEndian(flags, 1),
                      BigEndian(stream, 4), payload);
}

std::string Preface(absl::string_view settings) {
  return absl::StrCat("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Frame(kSettings, 0, 0, settings));
}

std::string CallHeaders(uint32_t stream, absl::string_view method) {
  // POST and http of HPACK's table, :path and :authority by their places in it, content-type, te.
  return Frame(
      kHeaders, kEndHeaders, stream,
      absl::StrCat("\x83\x86", "\x04", Text(method), "\x01", Text("localhost"), "\x0f\x10",
                   Text("application/grpc"), BigEndian(0, 1), Text("te"), Text("trailers")));
}

std::string Reset(uint32_t stream) { return Frame(kReset, 0, stream, BigEndian(8, 4)); }

}  // namespace tessera::http2
