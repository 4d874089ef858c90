#include "worker/executor/model_save.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "worker/memory/control_page.h"
#include "worker/storage/model_file.h"

namespace tessera {
namespace {

// A rank's outcome as bytes that ranks exchange.
struct Outcome {
  int32_t code = 0;
  char message[512] = {};
};

// The same status on every rank: OK if all are, else the lowest failing rank's.
absl::Status AgreeOn(const absl::Status& own, Communicator* communicator) {
  Outcome outcome;
  outcome.code = own.raw_code();
  StoreText(own.message(), outcome.message, sizeof(outcome.message));
  std::vector<Outcome> all(communicator->size());
  RETURN_IF_ERROR(communicator->AllGather(&outcome, all.data(), sizeof(Outcome)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].code == 0) continue;
    return absl::Status(static_cast<absl::StatusCode>(all[rank].code),
                        absl::StrCat("save on rank ", rank, ": ",
                                     LoadText(all[rank].message, sizeof(all[rank].message))));
  }
  return absl::OkStatus();
}

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
                      const float* shard) {
  ASSIGN_OR_RETURN(ModelFile file, ModelFile::Open(path, header));
  for (const ShardSegment& segment : segments) {
    const PlacedParameter& parameter =
        layout.units[segment.unit].flat.parameters()[segment.parameter];
    RETURN_IF_ERROR(
        file.WriteSlice(parameter.spec.name, segment.parameter_begin_elements,
                        absl::MakeSpan(shard + segment.state_begin_elements, segment.numel)));
  }
  return file.Sync();
}

}  // namespace

absl::Status SaveModel(const std::string& path, const ModelLayout& layout,
                       const std::vector<ShardSegment>& segments, const float* shard,
                       Communicator* communicator) {
  const bool leads = communicator->rank() == 0;
  absl::StatusOr<SafetensorsHeader> header = HeaderOf(layout);
  absl::Status status = header.status();
  if (status.ok() && leads) status = ModelFile::Create(path, *header);
  if (status.ok() && leads) status = FaultPoint("save.created");
  status = AgreeOn(status, communicator);
  if (status.ok()) status = AgreeOn(WriteOwn(path, *header, layout, segments, shard), communicator);
  if (status.ok())
    status = AgreeOn(leads ? ModelFile::Publish(path) : absl::OkStatus(), communicator);
  if (!status.ok() && leads) ModelFile::Discard(path);
  return status;
}

}  // namespace tessera
