// A stream of the fake GPU that does nothing before LetGo, and then `work`. Its end lets go, and
// waits. One thread at a time.
#ifndef TESSERA_TESTS_TESTING_HELD_STREAM_H_
#define TESSERA_TESTS_TESTING_HELD_STREAM_H_

#include <functional>
#include <utility>

#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_gpu.h"

namespace tessera::testing_support {

class HeldStream {
 public:
  explicit HeldStream(
      RankDevice* gpu, std::function<void()> work = [] {})
      : work_(std::move(work)) {
    EXPECT_OK(gpu->Allocate(1));  // Its context is this thread's from now on.
    auto stream = FakeGpu()->StreamCreateWithPriority(0);
    EXPECT_OK(stream);
    stream_ = *stream;
    EXPECT_OK(FakeGpu()->LaunchHostFunc(
        stream_, [](void* self) { static_cast<HeldStream*>(self)->Run(); }, this));
  }
  ~HeldStream() {
    LetGo();
    EXPECT_OK(FakeGpu()->StreamSynchronize(stream_));
    EXPECT_OK(FakeGpu()->StreamDestroy(stream_));
  }
  CudaStreamHandle* stream() const { return stream_; }
  void LetGo() {
    if (!go_.HasBeenNotified()) go_.Notify();
  }

 private:
  void Run() {
    go_.WaitForNotification();
    work_();
  }

  const std::function<void()> work_;
  absl::Notification go_;
  CudaStreamHandle* stream_ = nullptr;
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_HELD_STREAM_H_
