// `tessera certs make DIR`: an authority and certificates for a cluster's first connection by TLS.
#ifndef TESSERA_CLIENT_CLI_CERTS_COMMAND_H_
#define TESSERA_CLIENT_CLI_CERTS_COMMAND_H_

#include "client/cli/command.h"

namespace tessera::cli {

// What is in DIR already stays: the authority is used again, and nothing is overwritten.
// Errors: InvalidArgument     a malformed --worker, host or name; an authority that cannot be read
//         FailedPrecondition  only a part of the authority's or of a certificate's files is there
//         as of the file system.
void RegisterCertsCommand(CLI::App* app, RunCommand* selected);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_CERTS_COMMAND_H_
