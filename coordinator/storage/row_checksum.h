// The checksum of a journal's row. Pure.
#ifndef TESSERA_COORDINATOR_STORAGE_ROW_CHECKSUM_H_
#define TESSERA_COORDINATOR_STORAGE_ROW_CHECKSUM_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace tessera::coordinator {

// FNV-1a, 64 bits, over key, a zero byte, and value.
inline uint64_t RowChecksum(absl::string_view key, absl::string_view value) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3u; };
  for (const char c : key) mix(c);
  mix(0);
  for (const char c : value) mix(c);
  return hash;
}

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_STORAGE_ROW_CHECKSUM_H_
