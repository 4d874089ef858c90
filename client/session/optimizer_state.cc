#include "tessera/optimizer_state.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/session/state_access.h"

namespace tessera {
namespace {

int NumParameters(const Session& session) {
  int count = 0;
  for (const UnitLayout& unit : session.layout().units) count += unit.flat.parameters().size();
  return count;
}

}  // namespace

absl::StatusOr<TrainingProgress> ReadProgress(Session* session) {
  ASSIGN_OR_RETURN(const std::string bytes, StateAccess(session).Call(OpKind::kReadProgress, ""));
  return DecodeProgress(bytes, NumParameters(*session), session->config().groups.size());
}

absl::Status ReadMoments(Session* session, int unit, StateArray array,
                         const Session::Reader& read) {
  const std::vector<StateArray> moments = MomentsOf(session->config().optimizer);
  if (std::find(moments.begin(), moments.end(), array) == moments.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the job's optimizer has no state array ", static_cast<int>(array)));
  }
  return StateAccess(session).ReadArray(unit, array, read);
}

absl::Status WriteOptimizerState(Session* session, const TrainingProgress& progress,
                                 const MomentFiller& fill) {
  const int num_groups = session->config().groups.size();
  // Encoded and decoded: the same checks as in the executor, before anything is staged.
  RETURN_IF_ERROR(
      DecodeProgress(EncodeProgress(progress), NumParameters(*session), num_groups).status());
  if (!session->initialized())
    return absl::FailedPreconditionError("optimizer state of a job without initial values");
  StateAccess access(session);
  for (const StateArray array : MomentsOf(session->config().optimizer)) {
    for (int unit = 0; unit < session->num_units(); ++unit) {
      RETURN_IF_ERROR(access.StageArray(
          unit, array, [&](int u, int p, Values values) { fill(array, u, p, values); }));
    }
  }
  // All or nothing: what is staged becomes a version only by the vote of all ranks (ADR 15).
  return access.FinishState(progress);
}

}  // namespace tessera
