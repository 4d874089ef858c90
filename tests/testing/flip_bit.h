// Damages a file.
#ifndef TESSERA_TESTS_TESTING_FLIP_BIT_H_
#define TESSERA_TESTS_TESTING_FLIP_BIT_H_

#include <cstdint>
#include <fstream>
#include <string>

namespace tessera::testing_support {

// Bit `bit` (0 to 7) of the byte at `at_bytes`, or from the end on if that is negative: -1 is the
// last. Twice is as if never.
inline void FlipBit(const std::string& path, int64_t at_bytes, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at_bytes, at_bytes < 0 ? std::ios::end : std::ios::beg);
  const auto at = file.tellg();
  const char byte = static_cast<char>(file.get() ^ (1 << bit));
  file.seekp(at);
  file.put(byte);
}

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_FLIP_BIT_H_
