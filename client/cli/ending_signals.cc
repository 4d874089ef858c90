#include "client/cli/ending_signals.h"

#include <cerrno>

namespace tessera::cli {

EndingSignals::EndingSignals() {
  sigemptyset(&signals_);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals_, signal);
  // Threads inherit it, so none that starts later is ended by a signal that Wait should get.
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
}

EndingSignals::~EndingSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

bool EndingSignals::Wait(absl::Duration duration) const {
  const timespec timeout = absl::ToTimespec(duration);
  int signal = 0;
  do {
    signal = sigtimedwait(&signals_, nullptr, &timeout);
  } while (signal < 0 && errno == EINTR);
  return signal < 0;
}

}  // namespace tessera::cli
