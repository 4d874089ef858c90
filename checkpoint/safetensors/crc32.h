// CRC-32 (that of gzip and zlib) of bytes that several processes hold parts of. Pure; thread-safe.
//
//   CombineCrc32(Crc32(a), Crc32(b), b.size()) == Crc32(a + b)
#ifndef TESSERA_CHECKPOINT_SAFETENSORS_CRC32_H_
#define TESSERA_CHECKPOINT_SAFETENSORS_CRC32_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera {

inline constexpr uint32_t kCrc32OfNothing = 0;

// `before`: of the bytes that these follow.
uint32_t Crc32(const void* data, size_t size_bytes, uint32_t before = kCrc32OfNothing);
inline uint32_t Crc32(absl::string_view bytes) { return Crc32(bytes.data(), bytes.size()); }
uint32_t CombineCrc32(uint32_t first, uint32_t second, int64_t second_bytes);

// Eight lower-case hexadecimal digits. Errors of parsing: InvalidArgument.
std::string FormatCrc32(uint32_t crc32);
absl::StatusOr<uint32_t> ParseCrc32(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_CHECKPOINT_SAFETENSORS_CRC32_H_
