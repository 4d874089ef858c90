// `tessera put --job JOB --from PATH`: sets parameters of a job that trains, on all its ranks at
// the end of one step.
//
//   PATH                            a safetensors file, an index, a folder of a model, a checkpoint
//   --include / --exclude PATTERN   only some of them; --moments: their optimizer state too
//   --rename OLD=NEW                sets what is stored as OLD as NEW in the job; "OLD." stands for
//                                   all names that begin so; the first that matches counts
//   --wait 30s                      how long the trainers may take for a step
//   --json                          what was set, for programs
#ifndef TESSERA_CLIENT_CLI_PUT_COMMAND_H_
#define TESSERA_CLIENT_CLI_PUT_COMMAND_H_

#include "client/cli/command.h"

namespace tessera::cli {

// Errors: as PutFile; InvalidArgument  --wait is not a time, --rename not OLD=NEW.
void RegisterPutCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_PUT_COMMAND_H_
