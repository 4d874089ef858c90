// A mark in a row of work of one process, which another process asks about, or the same one.
//
//   trainer   kernels->Record(event) ──name()──► executor   OpenSharedEvent(name)->Query()
//
// Thread-compatible.
#ifndef TESSERA_SHM_SHARED_EVENT_H_
#define TESSERA_SHM_SHARED_EVENT_H_

#include <cstring>

#include "absl/status/statusor.h"

namespace tessera {

// Names an event to processes of the host. Opaque; all zero: none.
struct SharedEventName {
  char bytes[64] = {};

  friend bool operator==(const SharedEventName& a, const SharedEventName& b) {
    return memcmp(a.bytes, b.bytes, sizeof(a.bytes)) == 0;
  }
};

class SharedEvent {
 public:
  virtual ~SharedEvent() = default;

  // Whether the last mark, by whichever process, is reached. Errors: Unavailable, Internal  the
  // device's, or the creator of the event is gone
  virtual absl::StatusOr<bool> Query() = 0;
  // Of an event that this process made.
  virtual const SharedEventName& name() const = 0;
};

}  // namespace tessera

#endif  // TESSERA_SHM_SHARED_EVENT_H_
