// A mark in a stream. Others ask whether the stream has reached it, or wait until it has.
//
//   stream A  ──work──●Record(e)──work──►
//   stream B  ────────────────Wait(e)──work──►   runs its later work after A reached ●
//
// An event that was never recorded counts as reached. Recording again moves the mark; a running
// wait keeps waiting for the earlier mark. Marks of one event are reached in the order
// in which they were recorded, so record it again on another stream only once the last mark is
// reached. An event outlives the streams' work that mentions it. Thread-safe.
#ifndef TESSERA_WORKER_DEVICE_EVENT_H_
#define TESSERA_WORKER_DEVICE_EVENT_H_

namespace tessera {

class Event {
 public:
  virtual ~Event() = default;

  virtual bool Query() = 0;        // Whether the last mark was reached. Never blocks.
  virtual void Synchronize() = 0;  // Blocks the calling thread until it is.
};

}  // namespace tessera

#endif  // TESSERA_WORKER_DEVICE_EVENT_H_
