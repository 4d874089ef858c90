#include "worker/device/cuda/cuda_stream.h"

#include <pthread.h>

#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/start_thread.h"
#include "base/status_macros.h"

namespace tessera {

absl::StatusOr<std::unique_ptr<CudaEvent>> CudaEvent::Create(PrimaryContext* context) {
  RETURN_IF_ERROR(context->Use());
  absl::StatusOr<CudaEventHandle*> handle = context->api()->EventCreate();
  if (!handle.ok()) return Annotate(handle.status(), context->name());
  return absl::WrapUnique(new CudaEvent(context, *handle));
}

CudaEvent::~CudaEvent() {
  context_->Check(context_->Use());
  context_->Check(context_->api()->EventDestroy(handle_));
}

bool CudaEvent::Query() {
  // Counts as reached: nobody must wait for work that will never run.
  if (!context_->Check(context_->Use())) return true;
  const absl::StatusOr<bool> reached = context_->api()->EventQuery(handle_);
  return !context_->Check(reached.status()) || *reached;
}

void CudaEvent::Synchronize() {
  if (!context_->Check(context_->Use())) return;
  context_->Check(context_->api()->EventSynchronize(handle_));
}

absl::StatusOr<std::unique_ptr<CudaStream>> CudaStream::Create(PrimaryContext* context,
                                                               absl::string_view name,
                                                               int priority) {
  RETURN_IF_ERROR(context->Use());
  auto stream = absl::WrapUnique(new CudaStream(context));
  const std::string what = absl::StrCat(context->name(), " stream '", name, "'");
  absl::StatusOr<CudaStreamHandle*> handle = context->api()->StreamCreateWithPriority(priority);
  if (!handle.ok()) return Annotate(handle.status(), what);
  // Stored at once: the destructor destroys what there is.
  stream->handle_ = *handle;
  // In pinned memory: the device waits for it, and this process's thread counts it up.
  absl::StatusOr<void*> word = context->api()->MemHostAlloc(sizeof(uint32_t));
  if (!word.ok())
    return Annotate(NameWantedMemory(context->api(), word.status(), sizeof(uint32_t)), what);
  stream->word_ = static_cast<uint32_t*>(*word);
  // Before the first wait for it is issued.
  *stream->word_ = 0;
  ASSIGN_OR_RETURN(stream->thread_,
                   StartThread(what, [stream = stream.get()] { stream->RunHostWork(); }));
  pthread_setname_np(stream->thread_.native_handle(), std::string(name.substr(0, 15)).c_str());
  return stream;
}

CudaStream::~CudaStream() {
  if (thread_.joinable()) {
    // Work that is left still needs the thread.
    Synchronize();
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    thread_.join();
  }
  context_->Check(context_->Use());
  // After the thread, which uses both.
  if (handle_ != nullptr) context_->Check(context_->api()->StreamDestroy(handle_));
  if (word_ != nullptr) context_->Check(context_->api()->MemFreeHost(word_));
}

void CudaStream::Enqueue(absl::AnyInvocable<void()> work) {
  // Held over both: tickets are in the order of the works.
  absl::MutexLock issue(&issue_mu_);
  {
    // Before it is issued: the stream may be idle, and notify at once.
    absl::MutexLock lock(&mu_);
    works_.push_back(std::move(work));
  }
  if (context_->Check(Issue(++last_ticket_))) return;
  absl::MutexLock lock(&mu_);
  broken_ = true;  // The stream will not tell when to run it, nor work before it.
}

absl::Status CudaStream::Issue(uint32_t ticket) {
  RETURN_IF_ERROR(context_->Use());
  // First the notice, then the wait: the stream stops until the work is done.
  RETURN_IF_ERROR(context_->api()->LaunchHostFunc(handle_, &CudaStream::Notify, this));
  return context_->api()->StreamWaitValue32(handle_, reinterpret_cast<CudaAddress>(word_), ticket);
}

void CudaStream::Notify(void* stream) {
  auto* self = static_cast<CudaStream*>(stream);
  // On a thread of the driver, which must not be held up: it only counts.
  absl::MutexLock lock(&self->mu_);
  ++self->due_;
}

void CudaStream::RunHostWork() {
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stopping_ || (!works_.empty() && (due_ > 0 || broken_));
  };
  while (true) {
    absl::AnyInvocable<void()> work;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&ready));
      if (works_.empty()) return;
      work = std::move(works_.front());
      works_.pop_front();
      // 0 where the stream is broken and did not notify.
      if (due_ > 0) --due_;
      running_ = true;
    }
    // Without a lock: it may block, and enqueue more.
    work();
    work = nullptr;  // What it captured is let go before the stream continues.
    // Release: what the work wrote is visible to what the device runs after its wait.
    __atomic_fetch_add(word_, 1, __ATOMIC_RELEASE);
    // Only now: RunWhatIsLeft waits until nothing runs.
    absl::MutexLock lock(&mu_);
    running_ = false;
  }
}

void CudaStream::Record(Event* event) {
  context_->Check(context_->Use());
  context_->Check(context_->api()->EventRecord(static_cast<CudaEvent*>(event)->handle(), handle_));
}

void CudaStream::Wait(Event* event) {
  context_->Check(context_->Use());
  context_->Check(
      context_->api()->StreamWaitEvent(handle_, static_cast<CudaEvent*>(event)->handle()));
}

void CudaStream::Synchronize() {
  absl::Status status = context_->Use();
  if (status.ok()) status = context_->api()->StreamSynchronize(handle_);
  // A broken stream would leave host work behind, and those that wait for it.
  RunWhatIsLeft(context_->Check(status));
}

void CudaStream::RunWhatIsLeft(bool synchronized) {
  absl::MutexLock lock(&mu_);
  // The thread then runs what is left without being notified: captures are let go, waits end.
  if (!synchronized) broken_ = true;
  if (!broken_) return;  // The stream has waited for its host work.
  const auto idle = [this]()
                        ABSL_SHARED_LOCKS_REQUIRED(mu_) { return works_.empty() && !running_; };
  mu_.Await(absl::Condition(&idle));
}

}  // namespace tessera
