#include "worker/comm/tcp/peer_mesh.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <asio.hpp>
#include <atomic>
#include <chrono>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/same_secret.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "worker/comm/tcp/frame.h"

namespace tessera {
namespace {

using asio::ip::tcp;
using ErrorCode = asio::error_code;

// Between two questions whether to stop.
constexpr absl::Duration kStopInterval = absl::Milliseconds(20);

// Before the next accept after one that failed.
constexpr auto kAcceptDelay = std::chrono::milliseconds(20);
// Connections at once that have not greeted, in addition to those of the peers.
constexpr size_t kMaxStrangers = 64;

// Moves all of a part's bytes, as many in each system call as the socket takes, until the mesh
// fails. Asio's own limit is 64 KiB a call.
struct MoveAll {
  static constexpr size_t kMaxCallBytes = size_t{4} << 20;
  const absl::Status* failure;
  // 0 ends the operation, so that a failed mesh moves no more of a large part.
  size_t operator()(const ErrorCode& error, size_t) const {
    return error || !failure->ok() ? 0 : kMaxCallBytes;
  }
};

bool IsSame(const Secret& secret, const Secret& shown) {
  const auto text = [](const Secret& s) {
    return absl::string_view(reinterpret_cast<const char*>(s.data()), s.size());
  };
  return IsSameSecret(text(secret), text(shown));
}

// One connected peer.
struct Link {
  Link(int peer, tcp::socket socket) : peer(peer), socket(std::move(socket)) {}

  const int peer;
  tcp::socket socket;
  uint64_t sent = 0;      // Frames; the sequence number of the next one.
  uint64_t received = 0;  // Frames.
  bool torn = false;      // A frame was sent in part: nothing can follow it.
};

// What one exchange does on one link.
struct Transfer {
  Link* link = nullptr;
  FrameHeader out_header, in_header;
  std::vector<asio::const_buffer> out;
  std::vector<asio::mutable_buffer> in;
  int64_t in_bytes = 0;
  bool sent = false, received = false;
  std::string failure;  // Of the peer, where it tells of one.
};

class AsioMesh : public PeerMesh {
 public:
  explicit AsioMesh(Options options)
      : options_(std::move(options)),
        work_(asio::make_work_guard(io_)),
        acceptor_(io_),
        accept_again_(io_) {}

  absl::Status Open();
  const std::string& address() const override { return address_; }
  absl::Status Connect(const std::map<int, std::string>& addresses, absl::Time deadline,
                       const std::function<bool()>& stop) override;
  absl::Status Exchange(const Operation& operation, absl::Span<const int> peers,
                        absl::Span<const Part> sends, absl::Span<const Part> receives,
                        absl::Time deadline) override;
  void Abort(const absl::Status& reason) override;
  void Tell(const absl::Status& reason) override;
  int64_t bytes_received() const override { return bytes_received_; }

 private:
  // A connection that has not said yet whose it is.
  struct Stranger {
    explicit Stranger(tcp::socket socket) : socket(std::move(socket)) {}
    tcp::socket socket;
    Greeting greeting;
  };

  std::string Me() const { return absl::StrCat("rank ", options_.rank); }
  // Runs handlers until `pending_` is 0 or something failed; then nothing is under way any more.
  absl::Status Run(absl::Time deadline, const std::function<bool()>& stop = nullptr);
  void CancelAll();
  void Fail(absl::Status status) {
    if (failure_.ok()) failure_ = std::move(status);
  }
  void FailLink(const Link& link, const ErrorCode& error) {
    if (error == asio::error::operation_aborted) return;
    Fail(absl::UnavailableError(
        absl::StrCat(Me(), " lost its connection with rank ", link.peer, ": ", error.message())));
  }
  absl::Status AbortReason() {
    absl::MutexLock lock(&mu_);
    return abort_reason_;
  }

  absl::Status Dial(int peer, const std::string& address);
  void Greet(Link* link);
  void Accept();
  void ReadGreeting(tcp::socket socket);
  void OnGreeting(Stranger* stranger);
  void EndAccepting();

  void Send(Transfer* transfer);
  void Receive(const Operation& operation, Transfer* transfer);
  // Whether the header begins what `transfer` waits for; the reason is in failure_ where not.
  bool Expected(const Operation& operation, Transfer* transfer);
  void ReceiveFailure(Transfer* transfer);

  const Options options_;
  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  tcp::acceptor acceptor_;
  asio::steady_timer accept_again_;
  std::string accept_error_;                        // Of the last accept; empty: it went well.
  std::list<std::shared_ptr<Stranger>> strangers_;  // The oldest first.
  Secret secret_;
  std::string address_;
  std::vector<std::unique_ptr<Link>> dialing_;
  std::map<int, std::unique_ptr<Link>> links_;  // By rank.
  std::map<int, Secret> peer_secrets_;
  std::vector<Transfer> transfers_;  // Of the exchange under way; kept so that it grows no more.
  int pending_ = 0;                  // Handlers that the operation under way waits for.
  int running_ = 0;                  // Handlers that may run, and refer to the caller's memory.
  absl::Status failure_;             // The first; the mesh is unusable then.
  std::atomic<int64_t> bytes_received_{0};

  absl::Mutex mu_;
  absl::Status abort_reason_ ABSL_GUARDED_BY(mu_);
};

absl::Status AsioMesh::Open() {
  ErrorCode error;
  // Numbers only: the lookup of a name has no deadline.
  const asio::ip::address host = asio::ip::make_address(options_.listen_host, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", options_.listen_host, "' is not an IP address"));
  }
  const tcp::endpoint any_port(host, 0);
  acceptor_.open(any_port.protocol(), error);
  if (!error) acceptor_.bind(any_port, error);
  // As many as the kernel lets wait: peers connect at once, and strangers must not crowd them out.
  if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("listen on ", options_.listen_host, ": ", error.message()));
  }
  // Shows that a connection comes from a rank which the coordinator told this address
  // (docs/adr/0013).
  if (getrandom(secret_.data(), secret_.size(), 0) != static_cast<ssize_t>(secret_.size())) {
    return absl::UnavailableError("the kernel gives no random bytes");
  }
  address_ = FormatPeerAddress({options_.listen_host, acceptor_.local_endpoint().port(), secret_});
  return absl::OkStatus();
}

void AsioMesh::CancelAll() {
  ErrorCode ignored;
  acceptor_.close(ignored);
  // Handlers refer to buffers of the caller: none may be left when the operation returns. One whose
  // operation was over before it could be cancelled may start the next, so all are cancelled again
  // after each handler.
  while (running_ > 0) {
    // Connected sockets are cancelled but not closed: Tell may still send the reason on them.
    for (auto& [peer, link] : links_) link->socket.cancel(ignored);
    for (auto& link : dialing_) link->socket.close(ignored);
    // It cannot block for long: what is cancelled or closed completes at once.
    io_.run_one();
  }
}

absl::Status AsioMesh::Run(absl::Time deadline, const std::function<bool()>& stop) {
  // Without `stop` there is nothing to look at in between: Abort posts a handler, which ends the
  // wait.
  const absl::Duration longest = stop == nullptr ? absl::Hours(1) : kStopInterval;
  // One thread runs all handlers, in here: they need no lock, and none runs between operations.
  while (pending_ > 0 && failure_.ok()) {
    absl::Status aborted = AbortReason();
    if (aborted.ok() && stop != nullptr && stop()) aborted = absl::AbortedError("told to stop");
    if (!aborted.ok()) {
      Fail(std::move(aborted));
      break;
    }
    const auto left = absl::ToChronoNanoseconds(
        std::min(std::max(deadline - SteadyNow(), absl::ZeroDuration()), longest));
    if (io_.run_one_for(left) == 0 && SteadyNow() >= deadline) {
      Fail(absl::DeadlineExceededError(""));  // The caller names the missing ranks.
    }
  }
  if (!failure_.ok()) CancelAll();
  return failure_;
}

absl::Status AsioMesh::Connect(const std::map<int, std::string>& addresses, absl::Time deadline,
                               const std::function<bool()>& stop) {
  if (!failure_.ok()) return failure_;
  for (const int peer : options_.peers) {
    const auto address = addresses.find(peer);
    if (address == addresses.end()) {
      return absl::InvalidArgumentError(absl::StrCat("no address of rank ", peer));
    }
    RETURN_IF_ERROR(Annotate(Dial(peer, address->second), absl::StrCat("rank ", peer)));
  }
  Accept();
  const absl::Status status = Run(deadline, stop);
  // In any case: from here on no connection is a peer's.
  EndAccepting();
  if (absl::IsDeadlineExceeded(status)) {
    std::vector<int> missing;
    for (const int peer : options_.peers) {
      if (links_.count(peer) == 0) missing.push_back(peer);
    }
    failure_ = absl::DeadlineExceededError(absl::StrCat(
        Me(), " waits to connect with ranks ", absl::StrJoin(missing, ", "), " of ",
        options_.group_size, accept_error_.empty() ? "" : "; it cannot accept: ", accept_error_));
  }
  return failure_;
}

// The lower rank dials, the higher one accepts.
absl::Status AsioMesh::Dial(int peer, const std::string& address) {
  ASSIGN_OR_RETURN(const PeerAddress to, ParsePeerAddress(address));
  // The address comes from the peer's worker, through the coordinator. It is parsed before it is
  // used.
  peer_secrets_[peer] = to.secret;
  ++pending_;
  // Counted as pending: this peer dials, and its greeting ends the wait for it.
  if (peer < options_.rank) return absl::OkStatus();
  ErrorCode error;
  const asio::ip::address host = asio::ip::make_address(to.host, error);
  if (error)
    return absl::InvalidArgumentError(absl::StrCat("'", to.host, "' is not an IP address"));
  Link* link = dialing_.emplace_back(std::make_unique<Link>(peer, tcp::socket(io_))).get();
  ++running_;
  // A refused connection is no reason to try again: the peer listens before its address is told.
  link->socket.async_connect(tcp::endpoint(host, to.port), [this, link](ErrorCode error) {
    --running_;
    if (error) return FailLink(*link, error);
    Greet(link);
  });
  return absl::OkStatus();
}

void AsioMesh::Greet(Link* link) {
  ErrorCode ignored;
  // Frames are whole messages: a small one must not wait for the next.
  link->socket.set_option(tcp::no_delay(true), ignored);
  auto greeting = std::make_shared<Greeting>(
      EncodeGreeting({options_.epoch, options_.rank, link->peer, peer_secrets_.at(link->peer)}));
  ++running_;
  asio::async_write(
      link->socket, asio::buffer(*greeting), [this, link, greeting](ErrorCode error, size_t) {
        --running_;
        if (error) return FailLink(*link, error);
        // The acceptor answers nothing. If it refuses the greeting it closes, which the first
        // exchange sees.
        const auto dialed =
            std::find_if(dialing_.begin(), dialing_.end(),
                         [link](const std::unique_ptr<Link>& l) { return l.get() == link; });
        links_[link->peer] = std::move(*dialed);
        dialing_.erase(dialed);
        --pending_;
      });
}

void AsioMesh::Accept() {
  acceptor_.async_accept([this](ErrorCode error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    accept_error_ = error ? error.message() : "";
    if (!error) {
      ReadGreeting(std::move(socket));
      return Accept();
    }
    // Most likely no descriptor is free. The connections wait in the backlog until one is.
    accept_again_.expires_after(kAcceptDelay);
    accept_again_.async_wait([this](ErrorCode) {
      if (acceptor_.is_open()) Accept();
    });
  });
}

void AsioMesh::ReadGreeting(tcp::socket socket) {
  // Peers greet at once, so the oldest one that has not is the least likely peer.
  if (strangers_.size() == kMaxStrangers + options_.peers.size()) {
    ErrorCode ignored;
    strangers_.front()->socket.close(ignored);
    strangers_.pop_front();
  }
  auto stranger = strangers_.emplace_back(std::make_shared<Stranger>(std::move(socket)));
  // The handler keeps the stranger alive: closing it from outside ends this read.
  asio::async_read(stranger->socket, asio::buffer(stranger->greeting),
                   [this, stranger](ErrorCode error, size_t) {
                     strangers_.remove(stranger);
                     if (!error && stranger->socket.is_open()) OnGreeting(stranger.get());
                   });
}

// Of the connections that are left, none is a peer's.
void AsioMesh::EndAccepting() {
  ErrorCode ignored;
  acceptor_.close(ignored);
  accept_again_.cancel();
  for (const auto& stranger : strangers_) stranger->socket.close(ignored);
  strangers_.clear();
  io_.poll();  // The handler of an accept that is over owns a connection too.
}

void AsioMesh::OnGreeting(Stranger* stranger) {
  const auto hello = DecodeGreeting(stranger->greeting);
  // All of it is checked before there is a link. Without the secret a connection gets no answer,
  // and a second one in a peer's name changes nothing.
  if (!hello.has_value() || !IsSame(secret_, hello->secret) || hello->epoch != options_.epoch ||
      hello->to != options_.rank || hello->from >= options_.rank ||
      peer_secrets_.count(hello->from) == 0 || links_.count(hello->from) > 0) {
    return;  // The socket closes.
  }
  ErrorCode ignored;
  stranger->socket.set_option(tcp::no_delay(true), ignored);
  links_[hello->from] = std::make_unique<Link>(hello->from, std::move(stranger->socket));
  --pending_;
}

absl::Status AsioMesh::Exchange(const Operation& operation, absl::Span<const int> peers,
                                absl::Span<const Part> sends, absl::Span<const Part> receives,
                                absl::Time deadline) {
  // After an error it is unknown what is in the sockets: the mesh is not used again.
  if (!failure_.ok()) return failure_;
  // At its size before handlers keep pointers to its elements.
  transfers_.resize(peers.size());
  pending_ = 2 * static_cast<int>(peers.size());
  for (size_t i = 0; i < peers.size(); ++i) {
    Transfer& transfer = transfers_[i];
    transfer.link = links_.at(peers[i]).get();
    transfer.sent = transfer.received = false;
    transfer.in_bytes = 0;
    transfer.in.clear();
    transfer.out.assign(1, asio::buffer(transfer.out_header.bytes));
    int64_t out_bytes = 0;
    for (const Part& part : sends) {
      if (part.peer != peers[i] || part.bytes == 0) continue;
      transfer.out.push_back(asio::buffer(part.data, static_cast<size_t>(part.bytes)));
      out_bytes += part.bytes;
    }
    for (const Part& part : receives) {
      if (part.peer != peers[i] || part.bytes == 0) continue;
      transfer.in.push_back(asio::buffer(part.data, static_cast<size_t>(part.bytes)));
      transfer.in_bytes += part.bytes;
    }
    // The length of the parts is known only now. `out` refers to the header's place already.
    transfer.out_header = EncodeFrameHeader(
        {FrameKind::kExchange, operation.digest, transfer.link->sent++, out_bytes});
  }
  // All are started before any is awaited: two peers with large parts would otherwise both fill
  // their sockets and wait for the other to read.
  for (Transfer& transfer : transfers_) {
    Send(&transfer);
    Receive(operation, &transfer);
  }
  const absl::Status status = Run(deadline);
  if (status.ok()) return status;
  std::vector<int> missing;
  for (const Transfer& transfer : transfers_) {
    // Part of the frame may be sent: what follows it would be taken for its bytes.
    if (!transfer.sent) transfer.link->torn = true;
    if (!transfer.received) missing.push_back(transfer.link->peer);
  }
  if (absl::IsDeadlineExceeded(status)) {
    failure_ = absl::DeadlineExceededError(
        absl::StrCat(operation.describe(operation.digest), ": ", Me(), " waited for ranks ",
                     absl::StrJoin(missing, ", "), " of ", options_.group_size));
  }
  return failure_;
}

void AsioMesh::Send(Transfer* transfer) {
  ++running_;
  asio::async_write(transfer->link->socket, transfer->out, MoveAll{&failure_},
                    [this, transfer](ErrorCode error, size_t bytes) {
                      --running_;
                      if (error) return FailLink(*transfer->link, error);
                      if (bytes < asio::buffer_size(transfer->out)) return;  // The mesh failed.
                      transfer->sent = true;
                      --pending_;
                    });
}

void AsioMesh::Receive(const Operation& operation, Transfer* transfer) {
  ++running_;
  asio::async_read(transfer->link->socket, asio::buffer(transfer->in_header.bytes),
                   [this, &operation, transfer](ErrorCode error, size_t) {
                     --running_;
                     if (error) return FailLink(*transfer->link, error);
                     if (!Expected(operation, transfer)) return;
                     // Only a frame that matches goes to the caller's memory, straight to its
                     // place.
                     ++running_;
                     asio::async_read(transfer->link->socket, transfer->in, MoveAll{&failure_},
                                      [this, transfer](ErrorCode error, size_t bytes) {
                                        --running_;
                                        bytes_received_ += static_cast<int64_t>(bytes);
                                        if (error) return FailLink(*transfer->link, error);
                                        if (bytes < asio::buffer_size(transfer->in)) return;
                                        transfer->received = true;
                                        --pending_;
                                      });
                   });
}

bool AsioMesh::Expected(const Operation& operation, Transfer* transfer) {
  Link* link = transfer->link;
  const auto frame = DecodeFrameHeader(transfer->in_header);
  // The sequence number catches a frame that was skipped or sent twice after a cancelled exchange.
  if (!frame.has_value() || frame->sequence != link->received) {
    Fail(absl::UnavailableError(
        absl::StrCat(Me(), " got something else than a frame from rank ", link->peer)));
    return false;
  }
  ++link->received;
  if (frame->kind == FrameKind::kFailure) {
    ReceiveFailure(transfer);
    return false;
  }
  if (frame->digest == operation.digest && frame->bytes == transfer->in_bytes) return true;
  const std::string mine = operation.describe(operation.digest);
  const std::string other = operation.describe(frame->digest);
  Fail(absl::FailedPreconditionError(
      absl::StrCat(Me(), " called ", mine, " while rank ", link->peer, " called ", other,
                   mine == other ? " with other sizes or types" : "")));
  return false;
}

void AsioMesh::ReceiveFailure(Transfer* transfer) {
  const auto frame = DecodeFrameHeader(transfer->in_header);
  // A text beyond the limit is cut. Nothing follows a failure on its link.
  transfer->failure.resize(static_cast<size_t>(std::min(frame->bytes, kMaxFailureBytes)));
  ++running_;
  asio::async_read(transfer->link->socket, asio::buffer(transfer->failure),
                   [this, transfer](ErrorCode, size_t bytes) {
                     --running_;
                     transfer->failure.resize(bytes);
                     // Whatever came of it: a text that is cut says more than none.
                     Fail(absl::AbortedError(transfer->failure));
                   });
}

void AsioMesh::Abort(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mu_);
    // The first reason is the one that ends the waits.
    if (!abort_reason_.ok()) return;
    abort_reason_ = absl::AbortedError(reason.message());
  }
  asio::post(io_, [] {});  // Run looks up.
}

void AsioMesh::Tell(const absl::Status& reason) {
  // First, so that nothing is sent on the mesh after its last word.
  Fail(absl::AbortedError(reason.message()));
  CancelAll();
  const std::string text(reason.message().substr(0, kMaxFailureBytes));
  for (auto& [peer, link] : links_) {
    ErrorCode error;
    if (!link->torn) {
      const FrameHeader header = EncodeFrameHeader(
          {FrameKind::kFailure, 0, link->sent++, static_cast<int64_t>(text.size())});
      const std::array<asio::const_buffer, 2> frame = {asio::buffer(header.bytes),
                                                       asio::buffer(text)};
      // A peer that does not read must not hold up this rank. It then sees the socket close.
      link->socket.non_blocking(true, error);
      // One try. A frame that goes out in part says nothing, so its link is closed.
      const size_t written = link->socket.write_some(frame, error);
      if (!error && written == header.bytes.size() + text.size()) continue;
    }
    link->torn = true;
    link->socket.close(error);  // The peer learns that much.
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerMesh>> PeerMesh::Listen(Options options) {
  auto mesh = std::make_unique<AsioMesh>(std::move(options));
  RETURN_IF_ERROR(mesh->Open());
  return mesh;
}

}  // namespace tessera
