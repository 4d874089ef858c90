// The process that holds a worker's memory while its daemon is away.
//
//   daemon ── put(owner, part, descriptors) ──► vault        daemon dies, or is replaced
//   next daemon ── list ──► vault ── all parts with their descriptors ──► the jobs continue
//
// A vault knows nothing of what it holds: memory files live as long as some process has a
// descriptor of them. It serves one daemon at a time, of its own user, and ends once no daemon has
// been there for a time, or nothing is held but what owner "" has.
#ifndef TESSERA_WORKER_VAULT_MEMORY_VAULT_H_
#define TESSERA_WORKER_VAULT_MEMORY_VAULT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "worker/vault/vault_client.h"

namespace tessera {

// Serves daemons that connect to `listener`, a packet socket, until the vault is useless: it is
// without a daemon for `patience`, or without one and empty. A daemon that puts nothing does not
// count. Blocks; one thread.
void RunVault(UniqueFd listener, absl::Duration patience);

// A connection with the vault of the worker whose sockets are in `socket_dir`: the one that is
// there, or a new process, which outlives this one. Before this process has a second thread. Makes
// the folder if it is missing.
// Errors: PermissionDenied  the folder is another user's, or the vault there is
//         Unavailable, InvalidArgument  no process or socket can be made; names it
absl::StatusOr<std::unique_ptr<VaultClient>> ConnectOrStartVault(const std::string& socket_dir,
                                                                 absl::Duration patience);

// Has the vault of worker `worker_id`, if there is one, let all go and end: its jobs are given up.
// Errors: PermissionDenied    it is another user's
//         FailedPrecondition  it is another worker's; those of VaultClient
absl::Status EndVault(const std::string& socket_dir, const std::string& worker_id);

}  // namespace tessera

#endif  // TESSERA_WORKER_VAULT_MEMORY_VAULT_H_
