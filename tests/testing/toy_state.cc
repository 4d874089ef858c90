#include "tests/testing/toy_state.h"

#include "base/status_macros.h"
#include "tessera/optimizer_state.h"
#include "tests/testing/toy_training.h"

namespace tessera::testing_support {

absl::StatusOr<ToyState> ReadState(Session* session) {
  ToyState state;
  ASSIGN_OR_RETURN(state.parameters, ReadAll(session));
  ASSIGN_OR_RETURN(const TrainingProgress progress, ReadProgress(session));
  state.update_counts = progress.update_counts;
  state.step = progress.step;
  for (const StateArray array : MomentsOf(session->config().optimizer)) {
    for (int unit = 0; unit < session->num_units(); ++unit) {
      RETURN_IF_ERROR(ReadMoments(session, unit, array, [&](int p, ConstValues values) {
        const absl::Span<const float> all = values.as<float>();
        state.moments[{array, unit, p}].assign(all.begin(), all.end());
      }));
    }
  }
  return state;
}

}  // namespace tessera::testing_support
