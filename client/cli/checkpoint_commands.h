// Checkpoints on disk, looked at off line, without a server; and those that a job has saved, as its
// coordinator knows them.
//
//   tessera checkpoints FOLDER   those in a folder, by step
//   tessera checkpoints --job JOB   what the job has saved, the newest first
//   tessera verify CHECKPOINT    reads every byte and compares it with the checksums
#ifndef TESSERA_CLIENT_CLI_CHECKPOINT_COMMANDS_H_
#define TESSERA_CLIENT_CLI_CHECKPOINT_COMMANDS_H_

#include "client/cli/command.h"

namespace tessera::cli {

void RegisterCheckpointsCommand(CLI::App* app, RunCommand* selected);
// Errors: DataLoss  something is damaged; what, is said before.
void RegisterVerifyCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_CHECKPOINT_COMMANDS_H_
