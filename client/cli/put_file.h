// Sets the contents of a file in a job that trains: what `tessera put` does.
//
//   NAME of a parameter, or of an alias          its values
//   NAME of a buffer                             its values, in the dtype that the job has
//   state.NAME.exp_avg, .exp_avg_sq (Adam), .momentum_buffer (SGD), with state.NAME.step
//                                                its moments, where those are asked for
#ifndef TESSERA_CLIENT_CLI_PUT_FILE_H_
#define TESSERA_CLIENT_CLI_PUT_FILE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors/stored_tensors.h"
#include "client/cli/put_client.h"
#include "client/live/live_client.h"
#include "layout/name_selection.h"
#include "proto/live_put.pb.h"

namespace tessera::cli {

struct PutFileOptions {
  // As of a load: renames say what a tensor that is stored is called in the job, and patterns are
  // of names in the job. State is renamed with its parameter.
  NameSelection selection;
  bool moments = false;  // Too.
  bool buffers = true;   // Too.
  int64_t wait_ms = 0;   // As PutBegin.
};

struct PutFilePlan {
  v1::PutBegin begin;           // But for the job and the wait.
  std::vector<StoredKey> keys;  // By tensor of it.
};

// `job`: all that the job has, moments too. Pure, but that it reads counts of updates.
// Errors: NotFound         a requested tensor that the job does not have; nothing is requested
//         InvalidArgument  a parameter of integers, or of another dtype that parameters do not
//                          have; a buffer in another dtype than the job's; a moment without its
//                          count of updates; two that are renamed alike. They name the tensor.
absl::StatusOr<PutFilePlan> PlanPutFile(const std::vector<v1::LiveTensorInfo>& job,
                                        const StoredTensors& stored, const PutFileOptions& options);

using PutProgress = std::function<void(int64_t done_bytes, int64_t all_bytes)>;

// Reads the file at `path` (anything that StoredTensors takes) piece by piece; no tensor is in
// memory whole.
// Errors: above; of StoredTensors, LiveClient and PutClient.
absl::StatusOr<v1::PutReply> PutFile(LiveClient* live, PutClient* client, const std::string& job_id,
                                     const std::string& path, const PutFileOptions& options,
                                     const PutProgress& progress);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_PUT_FILE_H_
