// Numbers of bytes for display.
#ifndef TESSERA_BASE_BYTES_TEXT_H_
#define TESSERA_BASE_BYTES_TEXT_H_

#include <cstdint>
#include <string>

namespace tessera {

// "1.8 TiB", "512.0 MiB", "17 B".
std::string BytesText(int64_t bytes);

}  // namespace tessera

#endif  // TESSERA_BASE_BYTES_TEXT_H_
