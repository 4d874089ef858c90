// A model's state in addition to parameters (SessionOptions::model.buffers): a part of the job's
// state, version by version, of each rank as its trainer says. Readers of the live state get rank
// 0's.
//
//   SessionBuffers(session).Set(0, bytes);     this rank's
//   session->Step();                           the version that this step makes has them
//   SessionBuffers(session).Get(0)             as they were set last, by any process
//
// A buffer that was never set reads as zeroes. A value stays until the next one is set. Buffers are
// also set by a load of a checkpoint, by a put, and by Restore(), which a trainer calls when it takes
// over a rank or repeats a step. IsGiven() says whether one of these set it last, and the hooks
// below are called. As the session: one thread at a time.
#ifndef TESSERA_CLIENT_SESSION_SESSION_BUFFERS_H_
#define TESSERA_CLIENT_SESSION_SESSION_BUFFERS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/session/buffer_hooks.h"
#include "shm/buffer_memory.h"
#include "tessera/session.h"

namespace tessera {

class SessionBuffers {
 public:
  explicit SessionBuffers(Session* session) : session_(session) {}  // Not owned.

  bool any() const;  // Whether the model has any.
  // All bytes of buffer number `buffer`, row-major, little-endian. Copies them; of the next step,
  // write, load or the job's first values on.
  // Errors: InvalidArgument  no such buffer, or not its size; Aborted.
  absl::Status Set(int buffer, absl::string_view values);
  // As they were set last; valid until Set() or the next operation. Requires such a buffer, which
  // somebody set.
  absl::string_view Get(int buffer) const;
  // Whether these bytes were set last, whole, by whichever trainer. Requires its size.
  bool Has(int buffer, absl::string_view values) const;
  // Changes each time that any trainer or put sets the buffer; 0: never set.
  uint64_t sequence(int buffer) const;
  // Whether somebody other than a trainer of this rank set it last.
  bool IsGiven(int buffer) const;
  // Sets those that the state's last version has, whatever was set since. Those that no version has
  // stay as they are, and are not given. Errors: Aborted.
  absl::Status Restore();
  void SetHooks(BufferHooks hooks);
  // For a trainer that continues a job that others started: calls the hook `restore`, again in the
  // next epoch if one ends meanwhile. Errors: the hook's own, as Session::Recover.
  absl::Status Resume();

 private:
  BufferBank Bank() const;

  Session* const session_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_SESSION_BUFFERS_H_
