// Saves of a job as a person reads them and as JSON. Pure. Every field comes from a server and is
// made safe for a terminal.
#ifndef TESSERA_CLIENT_CLI_SAVE_VIEW_H_
#define TESSERA_CLIENT_CLI_SAVE_VIEW_H_

#include <string>

#include "absl/status/status.h"
#include "proto/saves.pb.h"

namespace tessera::cli {

// How it ended. Requires SAVE_STATE_ENDED.
absl::Status OutcomeOf(const v1::Save& save);

// "save 3: waits for the next step", "save 3: step 120, 10 MiB of 40 MiB written",
// "save 3: step 120 in /c/step-120, 40 MiB in 1.2s", "save 3: ABORTED: ...".
std::string SaveLine(const v1::Save& save);
// One row a save that has not ended; "no saves wait or run" without any.
std::string PendingTable(const v1::ListCheckpointsResponse& saves);
// One row a save that has ended, the newest first; "no checkpoints" without any.
std::string EndedTable(const v1::ListCheckpointsResponse& saves);

std::string SaveJson(const v1::Save& save);
// {"job": "gpt", "saves": [...]}: those that have ended, or those that have not.
std::string SavesJson(const std::string& job_id, const v1::ListCheckpointsResponse& saves,
                      bool ended);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_SAVE_VIEW_H_
