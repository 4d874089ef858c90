#include "worker/signals.h"

#include <signal.h>

namespace tessera {
namespace {

sigset_t StopSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void BlockStopSignals() {
  const sigset_t set = StopSignals();
  sigprocmask(SIG_BLOCK, &set, nullptr);
}

int WaitForStopSignal() {
  const sigset_t set = StopSignals();
  int signal = 0;
  // They are blocked in every thread, so none of them is delivered instead.
  sigwait(&set, &signal);
  return signal;
}

}  // namespace tessera
