// A daemon's side of a vault. Thread-safe; calls go one by one and wait for the vault, which does
// nothing but answer them, for a few seconds at most. One that is silent for a second is sent
// SIGCONT: it has what no other process has, and so is never ended.
#ifndef TESSERA_WORKER_VAULT_VAULT_CLIENT_H_
#define TESSERA_WORKER_VAULT_VAULT_CLIENT_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "proto/vault.pb.h"

namespace google::protobuf {
class MessageLite;
}  // namespace google::protobuf

namespace tessera {

class VaultClient {
 public:
  // By part. What a message's part is has one descriptor.
  using Parts = std::map<std::string, std::vector<UniqueFd>>;

  explicit VaultClient(UniqueFd socket) : socket_(std::move(socket)) {}

  // Errors, of all of these: Unavailable       the vault is gone
  //                          DeadlineExceeded  it does not answer; each later call fails at once
  //                          ResourceExhausted no descriptors; as SharedRegion::Create
  absl::Status Put(const std::string& owner, const std::string& part, absl::Span<const int> fds);
  absl::Status PutMessage(const std::string& owner, const std::string& part,
                          const google::protobuf::MessageLite& message);
  absl::Status Drop(const std::string& owner);
  // All that is held, by owner.
  absl::StatusOr<std::map<std::string, Parts>> List();

 private:
  absl::Status Send(const v1::VaultCommand& command, absl::Span<const int> fds)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<v1::VaultAnswer> Receive(std::vector<UniqueFd>* fds)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the socket is ready for `events` in time.
  bool Await(short events) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Call(const v1::VaultCommand& command, absl::Span<const int> fds);

  absl::Mutex mu_;
  UniqueFd socket_ ABSL_GUARDED_BY(mu_);
  absl::Status broken_ ABSL_GUARDED_BY(mu_);
};

// What PutMessage put. Errors: DataLoss  it is not such a message
absl::Status ReadMessage(const VaultClient::Parts& parts, const std::string& part,
                         google::protobuf::MessageLite* message);

}  // namespace tessera

#endif  // TESSERA_WORKER_VAULT_VAULT_CLIENT_H_
