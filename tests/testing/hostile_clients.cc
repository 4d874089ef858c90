#include "tests/testing/hostile_clients.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/unique_fd.h"
#include "grpcpp/generic/generic_stub.h"
#include "job/job_codec.h"
#include "net/credentials.h"
#include "net/http2_by_hand.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"
#include "proto/hand_over.grpc.pb.h"
#include "proto/live_put.grpc.pb.h"

namespace tessera::testing_support {
namespace {

constexpr char kJob[] = "hostile";

// With a model of some 16 MiB, but no names.
v1::CreateJobRequest LargeModel() {
  constexpr int kParameters = 40'000;
  v1::CreateJobRequest request;
  *request.mutable_config() = EncodeJobConfig(JobConfig());
  v1::UnitSpec* unit = request.mutable_model()->add_units();
  unit->set_name("unit");
  for (int i = 0; i < kParameters; ++i) {
    v1::ParameterSpec* parameter = unit->add_parameters();
    parameter->set_name(absl::StrCat(i, std::string(400, 'p')));
    parameter->add_shape(1);
    parameter->set_dtype(v1::DTYPE_FP32);
    parameter->set_requires_grad(true);
  }
  return request;
}

grpc::ByteBuffer Buffer(const std::string& shared, const std::string& own) {
  // `shared` outlives all calls.
  const grpc::Slice slices[] = {
      grpc::Slice(shared.data(), shared.size(), grpc::Slice::STATIC_SLICE), grpc::Slice(own)};
  return grpc::ByteBuffer(slices, 2);
}

grpc::ByteBuffer Own(const std::string& message) {
  const grpc::Slice slice(message);
  return grpc::ByteBuffer(&slice, 1);
}

// Of a connection: the client's first frames, with room for all that the other side has to say.
std::string Preface() {
  constexpr absl::string_view kLargestWindow("\0\4\x7f\xff\xff\xff", 6);
  constexpr absl::string_view kMoreOfConnection("\x7f\xf0\0\0", 4);
  return http2::Preface(kLargestWindow) +
         http2::Frame(http2::kWindowUpdate, 0, 0, kMoreOfConnection);
}

// One call on a connection of its own, by hand.
class CallByHand {
 public:
  explicit CallByHand(int fd) : fd_(fd) {}

  // Until the other side ends the call or the connection, or it was long enough. Once `begin` is
  // sent: as many messages of `part` as the other side takes, or none where it is empty.
  void Run(std::string begin, const std::string& part, const std::function<bool()>& is_over) {
    const std::string more = http2::Frame(http2::kData, 0, 1, part);
    const auto size = static_cast<int64_t>(part.size());
    std::string to_send = std::move(begin);
    while (!has_ended_ && !is_over()) {
      if (to_send.empty() && size > 0 && std::min(of_stream_, of_connection_) >= size) {
        to_send = more;
        of_stream_ -= size;
        of_connection_ -= size;
      }
      pollfd waits_for = {fd_, static_cast<int16_t>(to_send.empty() ? POLLIN : POLLIN | POLLOUT),
                          0};
      poll(&waits_for, 1, 50);
      if ((waits_for.revents & POLLIN) != 0) Receive();
      if ((waits_for.revents & (POLLERR | POLLNVAL)) != 0) return;
      if ((waits_for.revents & POLLOUT) == 0) continue;
      const ssize_t count = send(fd_, to_send.data(), to_send.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN) return;
      if (count > 0) to_send.erase(0, count);
    }
  }

  // Reads nothing. Once `begin` is sent: as often as the other side takes it, what `more` returns,
  // or nothing where that is empty.
  void SendAlone(std::string begin, const std::function<std::string()>& more,
                 const std::function<bool()>& is_over) {
    std::string to_send = std::move(begin);
    absl::string_view left = to_send;
    while (!is_over()) {
      if (left.empty()) left = to_send = more();
      pollfd waits_for = {fd_, static_cast<int16_t>(left.empty() ? 0 : POLLOUT), 0};
      poll(&waits_for, 1, 50);
      if ((waits_for.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return;
      if ((waits_for.revents & POLLOUT) == 0) continue;
      const ssize_t count = send(fd_, left.data(), left.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count < 0 && errno != EAGAIN) return;
      if (count > 0) left.remove_prefix(count);
    }
  }

 private:
  void Receive() {
    char bytes[4096];
    const ssize_t count = recv(fd_, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (count <= 0) {
      has_ended_ = true;
      return;
    }
    received_.append(bytes, count);
    while (received_.size() >= 9) {
      const size_t size = Number(0, 3);
      if (received_.size() < 9 + size) return;
      const auto type = static_cast<uint8_t>(received_[3]);
      const bool is_of_call = Number(5, 4) == 1;
      if (type == http2::kWindowUpdate) (is_of_call ? of_stream_ : of_connection_) += Number(9, 4);
      if (type == http2::kGoAway ||
          (is_of_call && (type == http2::kHeaders || type == http2::kReset)))
        has_ended_ = true;
      received_.erase(0, 9 + size);
    }
  }
  int64_t Number(size_t at, size_t bytes) const {
    int64_t number = 0;
    for (size_t i = at; i < at + bytes; ++i)
      number = number << 8 | static_cast<uint8_t>(received_[i]);
    return number;
  }

  const int fd_;
  // What the other side has room for, as HTTP/2 begins with.
  int64_t of_stream_ = 65535 - 5, of_connection_ = 65535 - 5;
  std::string received_;
  bool has_ended_ = false;
};

}  // namespace

// Cancelled when the clients are stopped.
class HostileClients::Call {
 public:
  Call(HostileClients* clients, absl::Duration timeout) : clients_(clients) {
    context.set_deadline(GrpcDeadline(SteadyNow() + timeout));
    absl::MutexLock lock(&clients_->mu_);
    clients_->calls_.insert(&context);
  }
  ~Call() {
    absl::MutexLock lock(&clients_->mu_);
    clients_->calls_.erase(&context);
  }

  absl::Status Unary(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const grpc::ByteBuffer& request) {
    grpc::ByteBuffer reply;
    grpc::Status status;
    grpc::CompletionQueue queue;
    const auto call = grpc::GenericStub(channel).PrepareUnaryCall(
        &context, absl::StrCat("/tessera.v1.", method), request, &queue);
    call->StartCall();
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return FromGrpcStatus(status);
  }

  // Until the other side ends it, or the time is over.
  absl::Status WithoutReading(const std::shared_ptr<grpc::Channel>& channel,
                              const std::string& method, const grpc::ByteBuffer& request) {
    grpc::CompletionQueue queue;
    const auto next = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    const auto stream = grpc::GenericStub(channel).PrepareCall(
        &context, absl::StrCat("/tessera.v1.", method), &queue);
    stream->StartCall(nullptr);
    if (next()) {
      stream->Write(request, nullptr);
      next();
    }
    grpc::Status status;
    stream->Finish(&status, nullptr);
    next();
    return FromGrpcStatus(status);
  }

  grpc::ClientContext context;

 private:
  HostileClients* const clients_;
};

absl::StatusOr<std::unique_ptr<HostileClients>> HostileClients::Start(const Options& options) {
  std::unique_ptr<HostileClients> clients(new HostileClients(options));
  clients->model_ = LargeModel().SerializeAsString();
  v1::GetJobRequest long_request;
  long_request.set_job_id(std::string(60 << 20, 'j'));
  clients->long_request_ = long_request.SerializeAsString();
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, clients->Connect());
  RETURN_IF_ERROR(clients->Create(channel, kJob));
  for (size_t kind = 0; kind < kNumHostilities; ++kind) {
    for (int i = 0; i < options.clients[kind]; ++i) {
      clients->threads_.emplace_back(
          [c = clients.get(), kind, i] { c->Run(static_cast<Hostility>(kind), i); });
    }
  }
  return clients;
}

HostileClients::~HostileClients() {
  stopped_ = true;
  {
    absl::MutexLock lock(&mu_);
    for (grpc::ClientContext* call : calls_) call->TryCancel();
  }
  for (std::thread& thread : threads_) thread.join();
}

std::set<std::string> HostileClients::Answers(Hostility kind) const {
  absl::MutexLock lock(&mu_);
  const auto answers = answers_.find(kind);
  return answers == answers_.end() ? std::set<std::string>() : answers->second;
}

void HostileClients::Note(Hostility kind, const absl::Status& status) {
  if (stopped_) return;
  ++num_calls_[static_cast<size_t>(kind)];
  std::string text = status.ToString();
  text.erase(std::remove_if(text.begin(), text.end(), [](unsigned char c) { return isdigit(c); }),
             text.end());
  absl::MutexLock lock(&mu_);
  answers_[kind].insert(text);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> HostileClients::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return OpenChannel({options_.address, options_.certificate}, std::move(arguments));
}

absl::Status HostileClients::Create(const std::shared_ptr<grpc::Channel>& channel,
                                    const std::string& job) {
  v1::CreateJobRequest names;
  names.set_job_id(job);
  names.set_request_id(absl::StrCat(job, "-", absl::ToUnixNanos(SteadyNow())));
  return Call(this, absl::Minutes(1))
      .Unary(channel, "Jobs/CreateJob", Buffer(model_, names.SerializeAsString()));
}

void HostileClients::Run(Hostility kind, int number) {
  const bool by_hand = kind == Hostility::kSlowRequest || kind == Hostility::kEndless ||
                       kind == Hostility::kReadsNothing || kind == Hostility::kResets;
  if (by_hand && options_.unix_socket.empty()) return;
  auto channel = Connect();
  while (!stopped_ && channel.ok()) {
    if (!by_hand) {
      Note(kind, RunOnce(kind, number, *channel));
      continue;
    }
    SendByHand(kind);
    Note(kind, absl::OkStatus());
  }
}

absl::Status HostileClients::RunOnce(Hostility kind, int number,
                                     const std::shared_ptr<grpc::Channel>& channel) {
  Call call(this, absl::Seconds(30));
  v1::Job job;
  switch (kind) {
    case Hostility::kSilent: {
      const auto stub = v1::LivePut::NewStub(channel);
      v1::PutReply reply;
      return FromGrpcStatus(stub->PutLiveState(&call.context, &reply)->Finish());
    }
    case Hostility::kLongRequest:
      return call.Unary(channel, "Jobs/GetJob", Buffer(long_request_, {}));
    case Hostility::kWatches: {
      const auto stub = v1::Jobs::NewStub(channel);
      v1::WatchJobRequest request;
      request.set_job_id(kJob);
      const auto stream = stub->WatchJob(&call.context, request);
      if (stream->Read(&job)) Note(kind, absl::OkStatus());
      while (stream->Read(&job)) continue;
      return FromGrpcStatus(stream->Finish());
    }
    case Hostility::kAwaits: {
      v1::GetHandOverRequest request;
      request.set_job_id(kJob);
      return call.Unary(channel, "HandOvers/Get", Own(request.SerializeAsString()));
    }
    case Hostility::kTakesNothing: {
      v1::GetJobRequest request;
      request.set_job_id(kJob);
      return call.WithoutReading(channel, "Jobs/GetJob", Own(request.SerializeAsString()));
    }
    case Hostility::kCreates: {
      const std::string name = absl::StrCat("hostile-", number);
      const absl::Status created = Create(channel, name);
      v1::DeleteJobRequest request;
      request.set_job_id(name);
      request.set_request_id(absl::StrCat("delete-", absl::ToUnixNanos(SteadyNow())));
      Call(this, absl::Seconds(30))
          .Unary(channel, "Jobs/DeleteJob", Own(request.SerializeAsString()))
          .IgnoreError();
      return created;
    }
    default:
      return absl::OkStatus();
  }
}

void HostileClients::SendByHand(Hostility kind) const {
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  strncpy(address.sun_path, options_.unix_socket.c_str(), sizeof(address.sun_path) - 1);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return;
  const absl::Time end = SteadyNow() + absl::Seconds(30);
  const auto is_over = [&] { return stopped_ || SteadyNow() >= end; };
  const std::string part(16 << 10, 'j');
  const auto get_job = [](uint32_t bytes) {
    return Preface() + http2::BeginCall(1, "/tessera.v1.Jobs/GetJob", bytes, "");
  };
  CallByHand call(fd.get());
  if (kind == Hostility::kSlowRequest) {
    call.Run(get_job(60 << 20) + http2::Frame(http2::kData, 0, 1, part), "", is_over);
  } else if (kind == Hostility::kEndless) {
    call.Run(get_job(0xffffffff), part, is_over);
  } else if (kind == Hostility::kReadsNothing) {
    std::string calls = Preface() + http2::Acknowledge();
    for (uint32_t i = 0; i < 60; ++i)
      calls += http2::BeginCall(2 * i + 1, "/tessera.v1.Membership/ListWorkers", 0, "");
    call.SendAlone(
        calls, [] { return ""; }, is_over);
  } else {
    const auto more = [stream = uint32_t{1}]() mutable {
      std::string calls;
      for (int i = 0; i < 1000; ++i, stream += 2)
        calls += http2::CallHeaders(stream, "/tessera.v1.Jobs/GetJob") + http2::Reset(stream);
      return calls;
    };
    call.SendAlone(Preface() + http2::Acknowledge(), more, is_over);
  }
}

}  // namespace tessera::testing_support
