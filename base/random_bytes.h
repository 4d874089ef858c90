// Bytes that nobody guesses. Thread-safe.
#ifndef TESSERA_BASE_RANDOM_BYTES_H_
#define TESSERA_BASE_RANDOM_BYTES_H_

#include <string>

namespace tessera {

// Of the kernel's generator; ends the process where that cannot be read.
std::string RandomBytes(int count);
// `count` of them, as twice as many hexadecimal digits.
std::string RandomHex(int count);

}  // namespace tessera

#endif  // TESSERA_BASE_RANDOM_BYTES_H_
