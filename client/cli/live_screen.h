// Shows text again and again on a terminal's alternate screen, which leaves what was there before
// untouched. Thread-compatible.
#ifndef TESSERA_CLIENT_CLI_LIVE_SCREEN_H_
#define TESSERA_CLIENT_CLI_LIVE_SCREEN_H_

#include <functional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::cli {

// Enters the alternate screen, leaves it when destroyed. Lines that are too long are cut.
class LiveScreen {
 public:
  explicit LiveScreen(std::ostream* out);
  ~LiveScreen();
  LiveScreen(const LiveScreen&) = delete;
  LiveScreen& operator=(const LiveScreen&) = delete;

  // Overwrites the frame before, without the flicker that clearing first would make.
  void Show(const std::string& frame);

 private:
  std::ostream* const out_;
};

// Shows `next_frame()` until `wait()` returns false, which it does when the user wants to end.
// The first frame must succeed; a later error is shown above the last good frame, and the next one
// tried: a coordinator may come back.
// Errors: that of the first frame; Unavailable  the output cannot be written.
absl::Status RunLive(const std::function<absl::StatusOr<std::string>()>& next_frame,
                     const std::function<bool()>& wait, std::ostream* out);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_LIVE_SCREEN_H_
