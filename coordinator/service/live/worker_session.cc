#include "coordinator/service/live/worker_session.h"

#include <random>

namespace tessera::coordinator {

std::string NewSessionName() {
  std::random_device random;
  std::string session;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&session, absl::Hex(random(), absl::kZeroPad8));
  return session;
}

}  // namespace tessera::coordinator
