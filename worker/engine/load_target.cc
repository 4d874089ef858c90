#include "worker/engine/load_target.h"

#include <cstring>

#include "base/check.h"
#include "base/streaming_copy.h"

namespace tessera {

Values LoadTarget::Room(StateArray array, const ShardSegment& segment) {
  return options_.state->At(array, segment, options_.version);
}

void LoadTarget::Set(StateArray array, const ShardSegment& segment, int64_t begin_elements,
                     const ConstValues& values) {
  const Values whole = Room(array, segment);
  // Files decide these numbers. Callers checked them; this guards memory of a job.
  TESSERA_CHECK(values.dtype() == whole.dtype() && begin_elements >= 0 &&
                begin_elements + values.size() <= whole.size());
  std::byte* const to =
      static_cast<std::byte*>(whole.data()) + begin_elements * SizeBytes(whole.dtype());
  const auto size_bytes = static_cast<int64_t>(values.size_bytes());
  // Past the caches: a shard is larger than they are, and is not read again soon.
  StreamingCopy(to, values.data(), size_bytes);
  if (!options_.publishes || array != StateArray::kParameter) return;
  // Once, before the first published byte: a successor then publishes again.
  // The first values need no such word: nobody unshards before there are any.
  if (!has_published_ && !options_.first) UnpublishApplied(options_.group, options_.local_index);
  has_published_ = true;
  Publish(segment, begin_elements, values);
}

void LoadTarget::Publish(const ShardSegment& segment, int64_t begin_elements,
                         const ConstValues& values) {
  const auto [full, half] = options_.optimizer->PublishedAt(segment);
  if (full != nullptr) {
    StreamingCopy(full + begin_elements * SizeBytes(segment.dtype), values.data(),
                  static_cast<int64_t>(values.size_bytes()));
  } else {
    options_.kernels->CastToHalf(values, {half.to + begin_elements, half.dtype});
  }
}

// Streamed stores are weakly ordered: the fence orders them before what publishes the version.
void LoadTarget::Finish() { FlushStreamed(); }

void LoadTarget::Clear(StateArray array, const ShardSegment& segment) {
  const Values values = Room(array, segment);
  memset(values.data(), 0, values.size_bytes());
}

void LoadTarget::Keep(StateArray array, const ShardSegment& segment) {
  if (!options_.first) options_.state->Keep(array, segment, options_.version);
}

}  // namespace tessera
