#include "client/torch/collective_call.h"

#include "base/status_macros.h"
#include "client/session/session_setup.h"
#include "client/torch/torch_status.h"

namespace tessera {

absl::Status RunCollective(Session* session, const std::function<absl::Status()>& body) {
  const int64_t writes = session->num_writes();
  while (true) {
    absl::Status status = CatchTorch(body);
    // A step is done again as a whole, and not this call alone.
    if (status.ok() || session->within_step()) return status;
    status = SessionSetup(session).Tell(status);
    const absl::Status recovered = session->Recover();
    // It says more than what may follow from it.
    if (!absl::IsAborted(status)) return status;
    RETURN_IF_ERROR(recovered);
    // Decided before the process died: all ranks have it.
    if (session->num_writes() > writes) return absl::OkStatus();
  }
}

absl::Status RunCollective(ShardedModel* model, const std::function<absl::Status()>& body) {
  return model->in_step() ? CatchTorch(body) : RunCollective(&model->session(), body);
}

}  // namespace tessera
