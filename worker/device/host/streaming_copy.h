// Copies for memory that nobody reads soon: past the caches, so that what is overwritten is not
// read first and what is in the caches stays there. A third fewer bytes move than by memcpy.
// Pure; thread-safe over disjoint outputs.
#ifndef TESSERA_WORKER_DEVICE_HOST_STREAMING_COPY_H_
#define TESSERA_WORKER_DEVICE_HOST_STREAMING_COPY_H_

#include <cstdint>

namespace tessera {
namespace host {

// As memcpy, by the widest vectors of the running processor; any alignment. What was written is
// seen by others as what any later store is.
void StreamingCopy(void* to, const void* from, int64_t size_bytes);

}  // namespace host
}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_HOST_STREAMING_COPY_H_
