// Memory that is about to be used, so that no later access faults. Thread-safe.
#ifndef TESSERA_SHM_POPULATE_PAGES_H_
#define TESSERA_SHM_POPULATE_PAGES_H_

#include <cstddef>
#include <cstdint>

namespace tessera {

// Has the pages of [data, data + size_bytes) of a writable mapping be there. Their content stays,
// also where other processes write to it meanwhile. `data` is at the beginning of a page.
void PopulatePages(std::byte* data, int64_t size_bytes);

// The same for kernels before 5.14, which have no call for it: writes to each page by itself.
void TouchEachPage(std::byte* data, int64_t size_bytes);

}  // namespace tessera

#endif  // TESSERA_SHM_POPULATE_PAGES_H_
