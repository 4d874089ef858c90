// What a session calls about a model's buffers; see session_buffers.h.
#ifndef TESSERA_CLIENT_SESSION_BUFFER_HOOKS_H_
#define TESSERA_CLIENT_SESSION_BUFFER_HOOKS_H_

#include <functional>

#include "absl/status/status.h"

namespace tessera {

// Called by the session, within the calls of its user. Each may be empty.
struct BufferHooks {
  // Right before each operation that makes a version of the state: to Set() what has changed. Its
  // error is the operation's.
  std::function<absl::Status()> stage;
  // Right after it, and when the next epoch has started: to Get() the given values.
  std::function<void()> take;
  // A step that may be undone begins (RunStep): what the trainer has now is what it would begin
  // from again; ...
  std::function<void()> begin_step;
  // ... and it begins again; or Resume() was called. To Restore(), and to Get() what was given.
  std::function<absl::Status()> restore;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_BUFFER_HOOKS_H_
