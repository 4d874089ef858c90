#include "worker/executor/model_save.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "checkpoint/model_file.h"
#include "worker/executor/agreement.h"

namespace tessera {
namespace {

absl::StatusOr<SafetensorsHeader> HeaderOf(const ModelLayout& layout) {
  std::vector<TensorSpec> tensors;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  for (const UnitLayout& unit : layout.units) {
    for (const PlacedParameter& parameter : unit.flat.parameters())
      tensors.push_back(parameter.spec);
    // Shared storage is not representable in the format; the alias is recorded instead.
    for (const Alias& alias : unit.flat.aliases()) metadata[alias.name] = alias.primary;
  }
  return PlaceTensors(tensors, metadata);
}

absl::Status WriteOwn(const std::string& path, const SafetensorsHeader& header,
                      const ModelLayout& layout, const std::vector<ShardSegment>& segments,
                      const SavedState& state) {
  ASSIGN_OR_RETURN(ModelFile file, ModelFile::Open(path, header));
  for (const ShardSegment& segment : segments) {
    const PlacedParameter& parameter =
        layout.units[segment.unit].flat.parameters()[segment.parameter];
    RETURN_IF_ERROR(file.WriteSlice(parameter.spec.name, segment.parameter_begin_elements,
                                    state.values(StateArray::kParameter, segment)));
  }
  return file.Sync();
}

absl::Status WriteAndPublish(const std::string& path, const ModelLayout& layout,
                             const std::vector<ShardSegment>& segments, const SavedState& state,
                             Communicator* communicator, absl::Status* outcome) {
  const bool leads = communicator->rank() == 0;
  absl::StatusOr<SafetensorsHeader> header = HeaderOf(layout);
  *outcome = header.status();
  if (outcome->ok() && leads) *outcome = ModelFile::Create(path, *header);
  if (outcome->ok() && leads) *outcome = FaultPoint("save.created");
  RETURN_IF_ERROR(AgreeOn("save", outcome, communicator));
  if (!outcome->ok()) return absl::OkStatus();
  *outcome = WriteOwn(path, *header, layout, segments, state);
  RETURN_IF_ERROR(AgreeOn("save", outcome, communicator));
  if (!outcome->ok()) return absl::OkStatus();
  if (leads) *outcome = ModelFile::Publish(path);
  return AgreeOn("save", outcome, communicator);
}

}  // namespace

absl::Status SaveModel(const std::string& path, const ModelLayout& layout,
                       const std::vector<ShardSegment>& segments, const SavedState& state,
                       Communicator* communicator, absl::Status* outcome) {
  const absl::Status status = WriteAndPublish(path, layout, segments, state, communicator, outcome);
  if (communicator->rank() == 0 && (!status.ok() || !outcome->ok())) ModelFile::Discard(path);
  return status;
}

}  // namespace tessera
