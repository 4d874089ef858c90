// Waits for SIGTERM or SIGINT without a handler: block first, in main, before any thread starts.
#ifndef TESSERA_WORKER_SIGNALS_H_
#define TESSERA_WORKER_SIGNALS_H_

namespace tessera {

void BlockStopSignals();
int WaitForStopSignal();  // Returns the signal.

}  // namespace tessera

#endif  // TESSERA_WORKER_SIGNALS_H_
