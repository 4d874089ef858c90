// What a model has beside parameters (SessionOptions::model.buffers), for those who read the job's
// live state: rank 0's values, version by version.
//
//   SessionBuffers(session).Set(0, bytes);     rank 0; elsewhere it does nothing
//   session->Step();                           who reads the state of this step gets them with it
//
// A buffer that was never set reads as zeroes. What is set stays until something else is, also
// where another trainer takes the rank; a checkpoint's load sets what it has. Buffers of trainers
// are theirs: nothing sets them in a trainer from here. As the session: one thread at a time.
#ifndef TESSERA_CLIENT_CPP_SESSION_BUFFERS_H_
#define TESSERA_CLIENT_CPP_SESSION_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/cpp/session.h"
#include "worker/memory/buffer_memory.h"

namespace tessera {

class SessionBuffers {
 public:
  explicit SessionBuffers(Session* session) : session_(session) {}  // Not owned.

  bool publishes() const;  // Whether this is rank 0 of a model that has buffers.
  // All bytes of buffer number `buffer`, row-major, little-endian. Copies them; of the next step,
  // write, load or the job's first values on.
  // Errors: InvalidArgument  no such buffer, or not its size; Aborted.
  absl::Status Set(int buffer, absl::string_view values);
  // Whether these bytes were set last, whole, by whichever trainer. Requires its size.
  bool Has(int buffer, absl::string_view values) const;
  // Another one after each time that somebody set the buffer, whoever it was; 0: nobody, or this is
  // not rank 0.
  uint64_t sequence(int buffer) const;
  // `stage` is called where this is rank 0, right before each operation that makes a version of the
  // state, to Set() what has changed. Its error is the operation's.
  void OnVersion(std::function<absl::Status()> stage);

 private:
  BufferBank Bank() const;

  Session* const session_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_CPP_SESSION_BUFFERS_H_
