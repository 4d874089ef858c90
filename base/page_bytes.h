// The size of a page of memory, of all machines that this is built for.
#ifndef TESSERA_BASE_PAGE_BYTES_H_
#define TESSERA_BASE_PAGE_BYTES_H_

#include <cstdint>

namespace tessera {

inline constexpr int64_t kPageBytes = 4096;

}  // namespace tessera

#endif  // TESSERA_BASE_PAGE_BYTES_H_
