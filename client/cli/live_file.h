// The live state of a job as a safetensors file: what `tessera get` writes.
//
//   NAME of each parameter and buffer; of the optimizer's state, as in a checkpoint:
//   state.NAME.exp_avg, .exp_avg_sq (Adam), .momentum_buffer (SGD), .step (how many updates, F32)
#ifndef TESSERA_CLIENT_CLI_LIVE_FILE_H_
#define TESSERA_CLIENT_CLI_LIVE_FILE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/stored_tensors.h"
#include "client/cli/endpoint.h"
#include "client/live/live_client.h"

namespace tessera::cli {

// Errors: as LiveClient::Create.
absl::StatusOr<std::unique_ptr<LiveClient>> OpenLiveClient(const Endpoint& coordinator);

struct LiveFile {
  int64_t step = 0;          // As the job's committed step counts.
  int64_t trained_step = 0;  // As trainers count.
  int64_t num_tensors = 0;   // In the file.
  int64_t size_bytes = 0;    // Of the tensors that were read.
};

using LiveProgress = std::function<void(int64_t done_bytes, int64_t all_bytes)>;

// Reads what the query requests into a file at `path`, which gets its name once it is complete and
// on disk. No tensor is in memory whole. Tried once more, through the coordinator, if data was
// fetched from workers and they became unavailable.
// Errors: of LiveClient and ModelFile; DataLoss  the coordinator sent what it did not list, or
//         left something out.
absl::StatusOr<LiveFile> SaveLiveState(LiveClient* client, const v1::LiveStateQuery& query,
                                       LiveClient::Way way, const std::string& path,
                                       const LiveProgress& progress);

// The tensors that a query asks for, as those of a file: parts "model" and "optimizer".
absl::StatusOr<std::map<StoredKey, StoredEntry>> ListLiveState(LiveClient* client,
                                                               const v1::LiveStateQuery& query);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_LIVE_FILE_H_
