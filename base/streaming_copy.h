// Copies of more bytes than the CPU's caches hold. Uses the widest vectors of the running CPU; as
// memcpy, of any alignment. Pure; thread-safe over disjoint outputs.
//
//   far memory ── CopyAhead ──► a piece that stays in a cache ── StreamingCopy ──► far memory
//                                                                 ... FlushStreamed
#ifndef TESSERA_BASE_STREAMING_COPY_H_
#define TESSERA_BASE_STREAMING_COPY_H_

#include <cstdint>

namespace tessera {

// Of what is copied piece by piece in its order: what comes a page later is fetched meanwhile,
// which processors do not do by themselves over the end of a page.
void CopyAhead(void* to, const void* from, int64_t size_bytes);

// To memory that nobody reads soon: past the caches, so that what is overwritten is not read first
// and what is in the caches stays there. A third fewer bytes move than by memcpy.
// Others may see what was written later than what this thread stores after it, until:
void StreamingCopy(void* to, const void* from, int64_t size_bytes);
// A thread that sees what this thread stores from here on sees its streamed data too.
void FlushStreamed();

}  // namespace tessera

#endif  // TESSERA_BASE_STREAMING_COPY_H_
