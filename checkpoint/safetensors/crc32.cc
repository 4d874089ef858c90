#include "checkpoint/safetensors/crc32.h"

#include <isa-l/crc.h>
#include <zlib.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera {

// ISA-L has the faster sum (four times libdeflate's, with 512-bit vectors), zlib the combination;
// both are of the same polynomial.
uint32_t Crc32(const void* data, size_t size_bytes, uint32_t before) {
  return crc32_gzip_refl(before, static_cast<const unsigned char*>(data), size_bytes);
}

uint32_t CombineCrc32(uint32_t first, uint32_t second, int64_t second_bytes) {
  return static_cast<uint32_t>(crc32_combine(first, second, static_cast<z_off_t>(second_bytes)));
}

std::string FormatCrc32(uint32_t crc32) { return absl::StrFormat("%08x", crc32); }

absl::StatusOr<uint32_t> ParseCrc32(absl::string_view text) {
  uint32_t crc32 = 0;
  // Lower case only, as it is written: the manifest's text has one form.
  const bool digits = text.size() == 8 && std::all_of(text.begin(), text.end(), [](char c) {
                        return absl::ascii_isxdigit(c) && !absl::ascii_isupper(c);
                      });
  if (!digits || !absl::SimpleHexAtoi(text, &crc32)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::Utf8SafeCEscape(text), "' is not a checksum"));
  }
  return crc32;
}

}  // namespace tessera
