// An event of FakeCudaApis in several processes: a page of a memfd that each maps.
//
//   recorded  marks that were asked for; a wait takes the last of them
//   reached   the last mark that a stream has come to; waiters sleep on this word
//
// The handle names the creator's process and descriptor, by which another process opens the page
// (/proc/PID/fd/N): it must run as the same user, in the same space of process ids, and while the
// creator lives and has not destroyed its event.
//
// What this cannot show: what a driver does with an event whose process died before it was reached
// (here nobody reaches it, ever), and that a GPU waits without its host. It is stricter than the
// driver need be: an event of the own process is not opened, and one that its creator destroyed is
// refused, where the driver promises nothing.
// Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_CUDA_FAKE_SHARED_EVENT_H_
#define TESSERA_WORKER_DEVICE_CUDA_FAKE_SHARED_EVENT_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/unique_fd.h"
#include "worker/device/cuda/cuda_api.h"

namespace tessera {

class FakeSharedEvent {
 public:
  // Null: no memory for it.
  static std::shared_ptr<FakeSharedEvent> Create();
  // Null: it is not a handle, or nobody has the event any more.
  static std::shared_ptr<FakeSharedEvent> Open(const CudaIpcEventHandle& handle);
  ~FakeSharedEvent();
  FakeSharedEvent(const FakeSharedEvent&) = delete;
  FakeSharedEvent& operator=(const FakeSharedEvent&) = delete;

  // Writes where it is found into `handle`. False: another process created it.
  bool Export(CudaIpcEventHandle* handle) const;
  // By its creator: it is unusable everywhere from now on. By another process: nothing.
  void Destroy();
  bool usable() const { return page_->destroyed == 0; }

  // Marks count in a circle of 2^32.
  uint32_t NextMark() { return page_->recorded.fetch_add(1) + 1; }
  uint32_t LastMark() const { return page_->recorded; }
  void Reach(uint32_t mark);
  bool IsReached(uint32_t mark) const { return IsAt(page_->reached, mark); }
  // Until it is reached, or `broken` is not 0.
  void Await(uint32_t mark, const std::atomic<int>& broken) const;

 private:
  struct Page {
    std::atomic<uint32_t> recorded;
    std::atomic<uint32_t> reached;
    std::atomic<uint32_t> destroyed;
  };
  static bool IsAt(uint32_t reached, uint32_t mark) {
    return static_cast<int32_t>(reached - mark) >= 0;
  }
  static std::shared_ptr<FakeSharedEvent> Map(UniqueFd memory, bool created);
  FakeSharedEvent(UniqueFd memory, Page* page, bool created);

  const UniqueFd memory_;
  Page* const page_;
  const bool created_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_FAKE_SHARED_EVENT_H_
