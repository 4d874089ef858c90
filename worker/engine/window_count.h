// How many windows on what other hosts' slices of a unit its host's ranks have, so that the last
// one that is closed gives the memory back.
//
//   word   | tag: epoch and step | count |
//
// A rank counts its window before it joins the gather that fills it, and the gather ends once all
// have joined; so the rank that takes the count to 0 has the memory to itself until it joins the
// next one. Counts that an older epoch or step left in the word are ignored: the first window of a
// newer one starts at 0. Shared by the executors of a host; lock-free, thread-safe.
#ifndef TESSERA_WORKER_ENGINE_WINDOW_COUNT_H_
#define TESSERA_WORKER_ENGINE_WINDOW_COUNT_H_

#include <atomic>
#include <cstdint>

namespace tessera {

using WindowWord = std::atomic<uint64_t>;

// Of what is gathered in `epoch` after `step`; never 0.
uint64_t WindowTag(int64_t epoch, int64_t step);

void OpenWindow(WindowWord* word, uint64_t tag);
// Whether it was the last one of its tag.
bool CloseWindow(WindowWord* word, uint64_t tag);

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_WINDOW_COUNT_H_
