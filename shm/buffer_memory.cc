#include "shm/buffer_memory.h"

#include <cstring>

#include "base/fault_point.h"

namespace tessera {

void BufferBank::WriteMarked(int buffer, const void* values, uint64_t mark) const {
  std::atomic<uint64_t>& word = sequence(buffer);
  // Of whatever stands there the count, which no number of writes brings to its end.
  const uint64_t count = word.load(std::memory_order_relaxed) & (kGivenWord - 1);
  // A writer that was killed left the word odd. It stays odd until the new values are whole.
  const uint64_t writing = count < kGivenWord - 2 ? count | 1 : 1;
  word.store(writing, std::memory_order_relaxed);
  // Keeps the stores of the values after that of the odd word, which tells readers to try again.
  std::atomic_thread_fence(std::memory_order_release);
  // In halves, with a fault point between them: tests kill the writer there.
  const int64_t half = size_bytes(buffer) / 2;
  if (half > 0) memcpy(this->values(buffer), values, half);
  (void)FaultPoint("buffers.write");
  const auto* rest = static_cast<const std::byte*>(values) + half;
  if (size_bytes(buffer) > 0) memcpy(this->values(buffer) + half, rest, size_bytes(buffer) - half);
  // Release: a reader that acquires the even word sees all values.
  word.store((writing + 1) | mark, std::memory_order_release);
}

}  // namespace tessera
