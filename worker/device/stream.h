// A queue of work that runs in order, concurrently with the caller and with other streams.
//
//   Enqueue(a) Record(e) Enqueue(b)      a, then the mark e, then b
//
// Nothing here blocks the caller but Synchronize. What a stream reads and writes must live until
// the work is done. The destructor runs all work that is left. Work reports failure through what
// it captures; a stream knows no errors of its own. Thread-safe: calls from several threads are
// ordered as they arrive.
#ifndef TESSERA_WORKER_DEVICE_STREAM_H_
#define TESSERA_WORKER_DEVICE_STREAM_H_

#include "absl/functional/any_invocable.h"
#include "worker/device/event.h"

namespace tessera {

class Stream {
 public:
  virtual ~Stream() = default;

  // Runs `work` on a host thread once all earlier work of this stream is done; later work waits
  // for it. `work` does not call back into this stream's Synchronize.
  virtual void Enqueue(absl::AnyInvocable<void()> work) = 0;

  // Marks this point of the stream in `event`.
  virtual void Record(Event* event) = 0;

  // Holds back later work of this stream until the mark that `event` holds now is reached.
  virtual void Wait(Event* event) = 0;

  // Blocks the calling thread until everything enqueued before this call is done.
  virtual void Synchronize() = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_STREAM_H_
