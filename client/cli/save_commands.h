// Checkpoints of jobs that train, asked for from outside.
//
//   tessera save --job JOB --to PATH    its trainers save one at their next step; waits for it
//   tessera saves --job JOB             those that have not ended, how far they are, what they
//                                       wait for; `--cancel NUMBER` ends one
//
// `tessera checkpoints --job JOB` lists what was saved.
#ifndef TESSERA_CLIENT_CLI_SAVE_COMMANDS_H_
#define TESSERA_CLIENT_CLI_SAVE_COMMANDS_H_

#include <string>

#include "client/cli/command.h"
#include "client/cli/endpoint.h"

namespace tessera::cli {

// Errors: the save's outcome, if it waits for that; as SavesClient.
void RegisterSaveCommand(CLI::App* app, RunCommand* selected);
void RegisterSavesCommand(CLI::App* app, RunCommand* selected);

// Prints those of the job's saves that have ended, or those that have not.
absl::Status ListSaves(const Endpoint& coordinator, const std::string& job_id, bool ended,
                       bool json, const Console& console);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_SAVE_COMMANDS_H_
