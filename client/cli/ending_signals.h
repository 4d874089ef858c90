// Signals that end a command that runs until somebody ends it. Thread-compatible.
#ifndef TESSERA_CLIENT_CLI_ENDING_SIGNALS_H_
#define TESSERA_CLIENT_CLI_ENDING_SIGNALS_H_

#include <signal.h>

#include "absl/time/time.h"

namespace tessera::cli {

// Holds SIGINT, SIGTERM and SIGHUP back from this thread and from those that it starts, so that
// they end a wait, and what the command holds is given up in order.
class EndingSignals {
 public:
  EndingSignals();
  ~EndingSignals();
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;

  // Waits for `duration`; false as soon as a signal came.
  bool Wait(absl::Duration duration) const;

 private:
  sigset_t signals_;
  sigset_t before_;
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_ENDING_SIGNALS_H_
