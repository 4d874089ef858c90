#include "worker/executor/save/saved_version.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/fault_point.h"
#include "base/steady_time.h"
#include "base/streaming_copy.h"

namespace tessera {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;
// Fresh memory in pages of this size is filled several times faster than in small ones.
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

std::byte* ReserveFresh(int64_t size_bytes) {
  const int64_t whole = (size_bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  auto* memory =
      static_cast<std::byte*>(aligned_alloc(kHugePageBytes, std::max(whole, kHugePageBytes)));
  // A hint. Without huge pages the copy is only slower.
  if (memory != nullptr) (void)madvise(memory, whole, MADV_HUGEPAGE);  // Where there are any.
  return memory;
}

}  // namespace

class SavedVersion::SliceBytes final : public ByteSource {
 public:
  SliceBytes(SavedVersion* version, size_t slice) : version_(*version), slice_(slice) {}
  int64_t size_bytes() const override {
    return static_cast<int64_t>(version_.slices_[slice_].size_bytes());
  }
  const char* Take(int64_t size_bytes, char* room) override {
    const char* const taken = version_.Take(slice_, at_bytes_, size_bytes, room);
    at_bytes_ += size_bytes;
    return taken;
  }

 private:
  SavedVersion& version_;
  const size_t slice_;
  int64_t at_bytes_ = 0;
};

absl::Status SavedVersion::Begin(int64_t version, std::vector<ConstValues> slices,
                                 const std::atomic<bool>* stopped) {
  Clear();
  stopped_ = stopped;
  slices_ = std::move(slices);
  for (const ConstValues& slice : slices_) {
    offsets_bytes_.push_back(size_bytes_);
    const auto slice_bytes = static_cast<int64_t>(slice.size_bytes());
    // In pieces, so that training waits for one at most, not for a whole slice.
    for (int64_t at = 0; at < slice_bytes; at += kPieceBytes) {
      pieces_.push_back({static_cast<const std::byte*>(slice.data()) + at, size_bytes_ + at,
                         std::min(kPieceBytes, slice_bytes - at)});
    }
    size_bytes_ += slice_bytes;
  }
  // Now, so that a lack of memory refuses the save and does not fail it halfway.
  copy_.reset(ReserveFresh(size_bytes_));
  if (copy_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a copy of ", size_bytes_, " bytes of the state"));
  }
  // A rank without slices holds nothing: nobody would take them, and training would wait.
  if (pieces_.empty()) return absl::OkStatus();
  absl::MutexLock lock(&mu_);
  begun_ = pieces_.size();
  // Release: a thread that sees the version held sees the pieces.
  held_.store(version, std::memory_order_release);
  return absl::OkStatus();
}

std::unique_ptr<ByteSource> SavedVersion::Slice(size_t i) {
  return std::make_unique<SliceBytes>(this, i);
}

const char* SavedVersion::Take(size_t slice, int64_t at_bytes, int64_t size_bytes, char* room) {
  (void)FaultPoint("save.take");
  const int64_t begin_bytes = offsets_bytes_[slice] + at_bytes;
  {
    // Once LetGo() waits for the pieces in progress, none may begin in place: training waits for
    // it.
    const auto may_look = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !lets_go_ || held_.load(std::memory_order_relaxed) == kNone;
    };
    // Before LetGo the slice is read in place, after it from the copy.
    absl::MutexLock lock(&mu_, absl::Condition(&may_look));
    // Slices are taken in order and whole, so one number says how far it is.
    TESSERA_CHECK(begin_bytes == front_bytes_);
    if (held_.load(std::memory_order_relaxed) == kNone) {
      front_bytes_ += size_bytes;
      // Everything behind the front is in the copy by now, unless the save was stopped.
      return reinterpret_cast<const char*>(copy_.get()) + begin_bytes;
    }
    is_taking_ = true;
  }
  // Tests stop the writer here: training then waits for this piece, and for no other.
  (void)FaultPoint("save.taking");
  // Without the lock: it is the long part.
  CopyAhead(room, static_cast<const char*>(slices_[slice].data()) + at_bytes, size_bytes);
  absl::MutexLock lock(&mu_);
  is_taking_ = false;
  front_bytes_ += size_bytes;
  // Release: pairs with MayOverwrite. All reads of the version come before it is overwritten.
  if (front_bytes_ == size_bytes_ && copying_ == 0) held_.store(kNone, std::memory_order_release);
  return room;
}

void SavedVersion::EndTaking() {
  const auto is_quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return copying_ == 0; };
  absl::MutexLock lock(&mu_);
  front_bytes_ = size_bytes_;
  // Copiers may still read the state.
  mu_.Await(absl::Condition(&is_quiet));
  held_.store(kNone, std::memory_order_release);
}

SavedVersion::Hands SavedVersion::hands() const {
  absl::MutexLock lock(&mu_);
  return {is_taking_, copying_};
}

bool SavedVersion::CopyOne() {
  const Piece* piece = nullptr;
  {
    absl::MutexLock lock(&mu_);
    if (stopped_->load() || held_.load(std::memory_order_relaxed) == kNone) return false;
    // From the end, while the writer takes from the front, so that both meet in the middle.
    if (begun_ == 0) return false;
    piece = &pieces_[begun_ - 1];
    // All that is left was taken in place.
    if (piece->offset_bytes + piece->size_bytes <= front_bytes_) return false;
    // Under the lock: of the two threads that copy, one has this piece alone.
    --begun_;
    ++copying_;
  }
  (void)FaultPoint("save.copy");
  // Without the lock. The piece is this thread's alone.
  memcpy(copy_.get() + piece->offset_bytes, piece->from, piece->size_bytes);
  copied_bytes_.fetch_add(piece->size_bytes);
  absl::MutexLock lock(&mu_);
  --copying_;
  if (front_bytes_ == size_bytes_ && copying_ == 0) held_.store(kNone, std::memory_order_release);
  return true;
}

void SavedVersion::LetGo() {
  const auto is_quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return held_.load(std::memory_order_relaxed) == kNone || (copying_ == 0 && !is_taking_);
  };
  absl::MutexLock lock(&mu_);
  // From here on no slice is begun in place, so this wait ends with the pieces under way.
  lets_go_ = true;
  mu_.Await(absl::Condition(&is_quiet));
  held_.store(kNone, std::memory_order_release);
}

void SavedVersion::StartCopying() {
  absl::MutexLock lock(&mu_);
  // Not before: what the writer takes in time need not be copied at all (docs/adr/0048).
  may_copy_ = true;
}

void SavedVersion::CopyBehind() {
  {
    const auto is_over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return may_copy_ || held_.load(std::memory_order_relaxed) == kNone;
    };
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&is_over));
  }
  // In turn with training's thread, if that waits.
  while (CopyOne()) {
  }
  LetGo();
}

void SavedVersion::AwaitCopied(int64_t step) {
  if (MayOverwrite(step)) return;
  StartCopying();
  // Training helps: waiting for the copier alone would take longer.
  while (CopyOne()) {
  }
  LetGo();
}

void SavedVersion::Clear() {
  copy_.reset();
  slices_.clear();
  offsets_bytes_.clear();
  pieces_.clear();
  size_bytes_ = 0;
  copied_bytes_.store(0);
  absl::MutexLock lock(&mu_);
  held_.store(kNone, std::memory_order_release);
  may_copy_ = false;
  is_taking_ = false;
  lets_go_ = false;
  front_bytes_ = 0;
  begun_ = 0;
}

}  // namespace tessera
