#include "worker/vault/vault_client.h"

#include <poll.h>
#include <signal.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/message_lite.h"
#include "shm/fd_passing.h"
#include "shm/region.h"

namespace tessera {
namespace {

// Before and after it is sent SIGCONT.
constexpr int kSilenceMs = 1'000, kPatienceMs = 4'000;

}  // namespace

bool VaultClient::Await(short events) const {
  pollfd ready = {socket_.get(), events, 0};
  if (poll(&ready, 1, kSilenceMs) > 0) return true;
  // The vault's own pid, since it listened once more after its fork (docs/adr/0067).
  const absl::StatusOr<PacketPeer> vault = PeerOf(socket_.get());
  if (vault.ok() && vault->pid > 0)
    // A stopped vault would hold up the daemon for ever, and holds memory that is still needed.
    kill(vault->pid, SIGCONT);  // Nothing to a process that is not stopped.
  return poll(&ready, 1, kPatienceMs) > 0;
}

absl::Status VaultClient::Send(const v1::VaultCommand& command, absl::Span<const int> fds) {
  RETURN_IF_ERROR(broken_);
  if (!Await(POLLOUT)) {
    // Final: after a lost answer the next one would belong to the command before.
    broken_ = absl::DeadlineExceededError("the process that holds the memory takes no command");
    return broken_;
  }
  broken_ = SendPacket(socket_.get(), command.SerializeAsString(), fds);
  return broken_;
}

absl::StatusOr<v1::VaultAnswer> VaultClient::Receive(std::vector<UniqueFd>* fds) {
  RETURN_IF_ERROR(broken_);
  if (!Await(POLLIN)) {
    broken_ = absl::DeadlineExceededError("the process that holds the memory does not answer");
    return broken_;
  }
  absl::StatusOr<Packet> packet = ReceivePacket(socket_.get());
  broken_ = packet.status();
  RETURN_IF_ERROR(broken_);
  v1::VaultAnswer answer;
  if (!answer.ParseFromString(packet->bytes)) {
    broken_ = absl::DataLossError("the process that holds the memory sent no answer of its kind");
    return broken_;
  }
  // The connection stays good: an older vault serves what it does know.
  if (!answer.error().empty()) return absl::UnimplementedError(answer.error());
  // Only after the answer is known to be whole: on errors they close.
  *fds = std::move(packet->fds);
  return answer;
}

absl::Status VaultClient::Call(const v1::VaultCommand& command, absl::Span<const int> fds) {
  // Commands and answers alternate, so one call at a time.
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(Send(command, fds));
  std::vector<UniqueFd> none;
  return Receive(&none).status();
}

absl::Status VaultClient::Put(const std::string& owner, const std::string& part,
                              absl::Span<const int> fds) {
  v1::VaultCommand command;
  command.mutable_put()->set_owner(owner);
  command.mutable_put()->set_part(part);
  return Call(command, fds);
}

absl::Status VaultClient::PutMessage(const std::string& owner, const std::string& part,
                                     const google::protobuf::MessageLite& message) {
  // As memory, since a job's description may be longer than a packet.
  const std::string bytes = message.SerializeAsString();
  // One byte more, as no region is empty.
  ASSIGN_OR_RETURN(const SharedRegion region,
                   SharedRegion::Create(part, static_cast<int64_t>(bytes.size()) + 1));
  {
    ASSIGN_OR_RETURN(const Mapping mapping, Mapping::CreateWhole(region.fd(), Access::kReadWrite));
    memcpy(mapping.data(), bytes.data(), bytes.size());
  }
  return Put(owner, part, {region.fd()});
}

absl::Status VaultClient::Drop(const std::string& owner) {
  v1::VaultCommand command;
  command.mutable_drop()->set_owner(owner);
  return Call(command, {});
}

absl::StatusOr<std::map<std::string, VaultClient::Parts>> VaultClient::List() {
  v1::VaultCommand command;
  command.mutable_list();
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(Send(command, {}));
  std::map<std::string, Parts> all;
  while (true) {
    std::vector<UniqueFd> fds;
    ASSIGN_OR_RETURN(const v1::VaultAnswer answer, Receive(&fds));
    if (!answer.is_part()) return all;
    all[answer.owner()][answer.part()] = std::move(fds);
  }
}

absl::Status ReadMessage(const VaultClient::Parts& parts, const std::string& part,
                         google::protobuf::MessageLite* message) {
  const auto found = parts.find(part);
  if (found == parts.end() || found->second.size() != 1)
    return absl::DataLossError(absl::StrCat("the vault holds no ", part));
  ASSIGN_OR_RETURN(const Mapping mapping,
                   Mapping::CreateWhole(found->second[0].get(), Access::kReadOnly));
  // Without the byte that was added to it.
  if (message->ParseFromArray(mapping.data(), static_cast<int>(mapping.size_bytes()) - 1))
    return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("what is held as ", part, " cannot be read"));
}

}  // namespace tessera
