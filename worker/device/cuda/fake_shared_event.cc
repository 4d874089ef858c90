#include "worker/device/cuda/fake_shared_event.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

constexpr uint64_t kMagic = 0x746e657665656b61;
// How soon a wait sees that its context broke.
constexpr timespec kLook = {0, 1000000};

struct Place {
  uint64_t magic;
  uint64_t inode;
  int32_t process;
  int32_t descriptor;
};
static_assert(sizeof(Place) <= sizeof(CudaIpcEventHandle::bytes));

}  // namespace

FakeSharedEvent::FakeSharedEvent(UniqueFd memory, Page* page, bool created)
    : memory_(std::move(memory)), page_(page), created_(created) {}

FakeSharedEvent::~FakeSharedEvent() { munmap(page_, sizeof(Page)); }

std::shared_ptr<FakeSharedEvent> FakeSharedEvent::Map(UniqueFd memory, bool created) {
  void* const page =
      mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (page == MAP_FAILED) return nullptr;
  return std::shared_ptr<FakeSharedEvent>(
      new FakeSharedEvent(std::move(memory), static_cast<Page*>(page), created));
}

std::shared_ptr<FakeSharedEvent> FakeSharedEvent::Create() {
  UniqueFd memory(memfd_create("event_of_a_fake_driver", MFD_CLOEXEC));
  if (!memory.valid() || ftruncate(memory.get(), sizeof(Page)) != 0) return nullptr;
  return Map(std::move(memory), /*created=*/true);
}

std::shared_ptr<FakeSharedEvent> FakeSharedEvent::Open(const CudaIpcEventHandle& handle) {
  Place place;
  std::memcpy(&place, handle.bytes, sizeof(place));
  if (place.magic != kMagic || place.process == getpid()) return nullptr;
  const std::string path = absl::StrCat("/proc/", place.process, "/fd/", place.descriptor);
  UniqueFd memory(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat info;
  if (!memory.valid() || fstat(memory.get(), &info) != 0 || info.st_ino != place.inode ||
      info.st_size != sizeof(Page)) {
    return nullptr;
  }
  std::shared_ptr<FakeSharedEvent> event = Map(std::move(memory), /*created=*/false);
  return event == nullptr || !event->usable() ? nullptr : event;
}

bool FakeSharedEvent::Export(CudaIpcEventHandle* handle) const {
  struct stat info;
  if (!created_ || fstat(memory_.get(), &info) != 0) return false;
  const Place place = {kMagic, info.st_ino, getpid(), memory_.get()};
  *handle = {};
  std::memcpy(handle->bytes, &place, sizeof(place));
  return true;
}

void FakeSharedEvent::Destroy() {
  if (created_) page_->destroyed = 1;
}

void FakeSharedEvent::Reach(uint32_t mark) {
  uint32_t reached = page_->reached;
  while (!IsAt(reached, mark) && !page_->reached.compare_exchange_weak(reached, mark)) {
  }
  syscall(SYS_futex, &page_->reached, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void FakeSharedEvent::Await(uint32_t mark, const std::atomic<int>& broken) const {
  while (broken == 0) {
    const uint32_t reached = page_->reached;
    if (IsAt(reached, mark)) return;
    syscall(SYS_futex, &page_->reached, FUTEX_WAIT, reached, &kLook, nullptr, 0);
  }
}

}  // namespace tessera
