#include "worker/executor/model_load.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "checkpoint/open_model.h"
#include "worker/executor/agreement.h"
#include "worker/executor/load_plan.h"
#include "worker/executor/load_request.h"

namespace tessera {
namespace {

// A stored model, and what of it goes where.
struct Source {
  std::unique_ptr<ModelSource> model;
  LoadPlan plan;
};

absl::StatusOr<Source> OpenSource(const std::string& path, const LoadRules& rules,
                                  const ModelLayout& layout, bool first) {
  ASSIGN_OR_RETURN(std::unique_ptr<ModelSource> model, OpenModel(path));
  absl::StatusOr<LoadPlan> plan = PlanLoad(model->tensors(), layout, rules);
  if (!plan.ok()) return Annotate(plan.status(), path);
  if (first) RETURN_IF_ERROR(CheckGivesAll(*plan));
  return Source{std::move(model), *std::move(plan)};
}

// Whether all ranks have the same file open.
absl::Status CompareFiles(const std::string& path, uint64_t identity, Communicator* communicator,
                          absl::Status* outcome) {
  std::vector<uint64_t> all(communicator->size());
  RETURN_IF_ERROR(communicator->AllGather(&identity, all.data(), sizeof(identity)));
  for (size_t rank = 1; rank < all.size() && outcome->ok(); ++rank) {
    if (all[rank] == all[0]) continue;
    *outcome = absl::FailedPreconditionError(
        absl::StrCat("load: ranks 0 and ", rank, " see different files at ", path));
  }
  return absl::OkStatus();
}

absl::Status ReadOwn(const Source& source, const std::vector<ShardSegment>& segments,
                     StateWriter* state, const std::atomic<bool>& stopped) {
  std::vector<char> piece(kPieceOfLoadBytes);
  for (const ShardSegment& segment : segments) {
    const std::string& tensor = source.plan.tensors[segment.unit][segment.parameter];
    if (tensor.empty()) {
      state->Keep(StateArray::kParameter, segment);
      continue;
    }
    RETURN_IF_ERROR(FaultPoint("load.read"));
    if (stopped.load()) return absl::AbortedError("the epoch ended");
    if (!source.model->reads_small_slices_well()) {
      const Values room = state->Room(StateArray::kParameter, segment);
      RETURN_IF_ERROR(source.model->ReadSlice(tensor, segment.parameter_begin_elements, room));
      state->Set(StateArray::kParameter, segment, 0, room);
      continue;
    }
    const int64_t most = kPieceOfLoadBytes / SizeBytes(segment.dtype);
    for (int64_t begin = 0; begin < segment.numel; begin += most) {
      const Values values(piece.data(), std::min(most, segment.numel - begin), segment.dtype);
      RETURN_IF_ERROR(
          source.model->ReadSlice(tensor, segment.parameter_begin_elements + begin, values));
      state->Set(StateArray::kParameter, segment, begin, values);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadModel(const std::string& path, const LoadRules& rules, const ModelLayout& layout,
                       const std::vector<ShardSegment>& segments, LoadedState* state,
                       Communicator* communicator, const std::atomic<bool>* stopped, LoadPlan* plan,
                       absl::Status* outcome) {
  absl::StatusOr<Source> source = OpenSource(path, rules, layout, state->first);
  *outcome = source.status();
  RETURN_IF_ERROR(AgreeOn("load", outcome, communicator));
  if (!outcome->ok()) return absl::OkStatus();
  RETURN_IF_ERROR(CompareFiles(path, source->model->identity(), communicator, outcome));
  if (!outcome->ok()) return absl::OkStatus();
  *plan = source->plan;
  *outcome = ReadOwn(*source, segments, state->writer, *stopped);
  RETURN_IF_ERROR(AgreeOn("load", outcome, communicator));
  if (!outcome->ok()) return absl::OkStatus();
  const uint64_t identity = source->model->identity();
  source->model.reset();  // Its descriptors may be many.
  const absl::StatusOr<std::unique_ptr<ModelSource>> again = OpenModel(path);
  *outcome = again.status();
  if (again.ok() && (*again)->identity() != identity)
    *outcome = absl::FailedPreconditionError(absl::StrCat(path, " changed while it was read"));
  return AgreeOn("load", outcome, communicator);
}

}  // namespace tessera
