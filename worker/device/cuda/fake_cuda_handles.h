// What the handles of a FakeCudaApi point at.
#ifndef TESSERA_WORKER_DEVICE_CUDA_FAKE_CUDA_HANDLES_H_
#define TESSERA_WORKER_DEVICE_CUDA_FAKE_CUDA_HANDLES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "worker/device/cuda/cuda_api.h"
#include "worker/device/cuda/fake_shared_event.h"
#include "worker/device/host/host_event.h"
#include "worker/device/host/host_stream.h"

namespace tessera {

// What was kept of a stream. Shared by the graph and the work that is under way.
using FakeGraph = std::vector<std::shared_ptr<absl::AnyInvocable<void()>>>;

struct FakeStream {
  std::shared_ptr<HostStream> queue;
  int priority = 0;
  // Not null: what the stream is given is kept here. Used as the stream is, by one thread at a
  // time.
  std::unique_ptr<FakeGraph> captured = nullptr;
};

struct FakeEvent {
  bool timed = false;
  // Owned by the work that sets or awaits it too: an event may be destroyed before the stream has
  // come to it.
  std::shared_ptr<HostEvent> reached = std::make_shared<HostEvent>();
  // Of the last mark that was reached; owned as that.
  std::shared_ptr<std::atomic<int64_t>> nanos = std::make_shared<std::atomic<int64_t>>(-1);
  // Of an event for several processes, in place of the two above. Owned by the work on it too.
  std::shared_ptr<FakeSharedEvent> shared;
};

// The legacy default stream, of all fakes of the process; never destroyed.
FakeStream* FakeLegacyStream();

inline FakeStream* Of(CudaStreamHandle* stream) {
  const bool is_legacy = reinterpret_cast<uintptr_t>(stream) == 1;  // CU_STREAM_LEGACY
  return is_legacy ? FakeLegacyStream() : reinterpret_cast<FakeStream*>(stream);
}
inline FakeGraph* Of(CudaGraphHandle* graph) { return reinterpret_cast<FakeGraph*>(graph); }
inline FakeEvent* Of(CudaEventHandle* event) { return reinterpret_cast<FakeEvent*>(event); }

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_CUDA_FAKE_CUDA_HANDLES_H_
