// Saves between the wire and the core: as codec.h, for saves.proto.
#ifndef TESSERA_COORDINATOR_SERVICE_SAVE_CODEC_H_
#define TESSERA_COORDINATOR_SERVICE_SAVE_CODEC_H_

#include "absl/status/statusor.h"
#include "coordinator/core/events.h"
#include "proto/saves.pb.h"

namespace tessera::coordinator {

absl::StatusOr<RequestSaveEvent> Decode(const v1::RequestSaveRequest& request);
absl::StatusOr<SaveReport> DecodeSaveReport(const v1::SaveReport& report);

v1::Save Encode(const JobId& job, const SaveView& view);

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SAVE_CODEC_H_
