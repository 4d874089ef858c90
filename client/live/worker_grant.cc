#include "client/live/worker_grant.h"

#include <poll.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/rpc/worker_socket.h"
#include "shm/local_messages.h"
#include "shm/shared_file.h"

namespace tessera {
namespace {

constexpr int64_t kMaxAnswerBytes = 512 << 20;

// The regions follow it in the packet.
struct ReadAnswer {
  v1::LiveMapAnswer answer;
  absl::Span<const UniqueFd> regions;
};

absl::StatusOr<ReadAnswer> Read(const Packet& packet) {
  ReadAnswer read;
  read.regions = packet.fds;
  ASSIGN_OR_RETURN(v1::LocalReply reply, ParseReply(packet.bytes));
  if (reply.has_map()) {
    read.answer = std::move(*reply.mutable_map());
    return read;
  }
  if (packet.fds.empty()) return absl::DataLossError("no descriptors arrived");
  ASSIGN_OR_RETURN(const std::string file, ReadSealedFile(packet.fds[0].get(), kMaxAnswerBytes));
  read.regions.remove_prefix(1);
  if (read.answer.ParseFromString(file)) return read;
  return absl::DataLossError("the received message is empty");
}

}  // namespace

absl::Status WorkerGrant::Ask(const v1::LiveStateQuery& query) {
  v1::LocalRequest request;
  *request.mutable_map() = query;
  const std::string text = EncodeRequest(std::move(request));
  if (text.size() > kMaxPacketBytes) {
    // Not InvalidArgument, after which VisitMap asks nobody else: a coordinator takes longer ones.
    return absl::FailedPreconditionError(
        absl::StrCat("a query of ", text.size(), " bytes is too long for it"));
  }
  ASSIGN_OR_RETURN(const Packet packet, AskWorker(socket_.get(), text));
  ASSIGN_OR_RETURN(ReadAnswer read, Read(packet));
  // The regions are mapped before their descriptors close with the packet.
  ASSIGN_OR_RETURN(source_,
                   MappedSource::Map(std::move(*read.answer.mutable_given()), read.regions));
  answer_ = std::move(read.answer);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<WorkerGrant>> WorkerGrant::Open(const std::string& worker_address,
                                                               const v1::LiveStateQuery& query) {
  const std::string who = absl::StrCat("worker at ", worker_address);
  ASSIGN_OR_RETURN(const std::string path, DescriptorSocketOf(worker_address));
  absl::StatusOr<UniqueFd> socket = ConnectToWorker(path);
  if (!socket.ok()) return Annotate(socket.status(), who);
  std::unique_ptr<WorkerGrant> grant(new WorkerGrant(who, *std::move(socket)));
  const absl::Status asked = grant->Ask(query);
  if (!asked.ok()) return Annotate(asked, who);
  return grant;
}

absl::Status WorkerGrant::why_ended() const {
  // Read at most once: the socket has one last message.
  absl::MutexLock lock(&mu_);
  if (!why_ended_.ok()) return why_ended_;
  pollfd look = {socket_.get(), POLLIN, 0};
  if (poll(&look, 1, 0) <= 0) return absl::OkStatus();  // Nothing came.
  const absl::StatusOr<Packet> last = ReceivePacket(socket_.get());
  const absl::Status said = last.ok() ? ParseReply(last->bytes).status() : last.status();
  why_ended_ = last.ok() && !said.ok() ? Annotate(said, who_)
                                       : absl::UnavailableError(absl::StrCat(who_, " is gone"));
  return why_ended_;
}

}  // namespace tessera
