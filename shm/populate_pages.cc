#include "shm/populate_pages.h"

#include <sys/mman.h>

#include "base/page_bytes.h"

namespace tessera {

void PopulatePages(std::byte* data, int64_t size_bytes) {
  if (size_bytes <= 0) return;
#ifdef MADV_POPULATE_WRITE
  // Kernels before 5.14 do not know it.
  if (madvise(data, size_bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
  TouchEachPage(data, size_bytes);
}

void TouchEachPage(std::byte* data, int64_t size_bytes) {
  for (int64_t at = 0; at < size_bytes; at += kPageBytes) {
    auto* page = reinterpret_cast<uint8_t*>(data + at);
    uint8_t value = __atomic_load_n(page, __ATOMIC_RELAXED);
    // Writes what is there, or else nothing: then another process has just written, and the page is
    // there. A plain store could undo that write, and a compiler may drop an atomic "or" with 0.
    (void)__atomic_compare_exchange_n(page, &value, value, /*weak=*/false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED);
  }
}

}  // namespace tessera
