// A gRPC server that hands every call on to another one, and loses, repeats and delays what it is
// told, as a bad network with retries does:
//
//   request lost      UNAVAILABLE, and the server never heard of it
//   reply lost        UNAVAILABLE, though the server has done it
//   repeated          the server is asked twice, the caller hears once
//   delayed           before the server is asked
//   cut               UNAVAILABLE after some messages of a stream, on both sides, or at its end
//
//   lossy_proxy TARGET LISTEN PORT_FILE SEED PACK_SIZE
//
// Of PACK_SIZE calls of a method one has each of these fates (call_fates.h). LISTEN: HOST:PORT, or
// unix:PATH of a socket. What callers send goes on as bytes; a caller that ends its call ends it at
// the server, too. Writes on standard error at its end, by SIGTERM, how many calls of each method
// had which fate.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "net/credentials.h"
#include "tests/fault/lossy/call_fates.h"

namespace tessera {
namespace {

constexpr int kCallsAtATime = 64;

// One call, on a thread and a queue that serve no other meanwhile.
class Call {
 public:
  Call(grpc::GenericStub* stub, CallFates* fates, grpc::ServerCompletionQueue* queue)
      : stub_(stub), fates_(fates), queue_(queue), stream_(&context_) {}

  // Waits for a call. False: the server ends.
  bool Await(grpc::AsyncGenericService* service) {
    context_.AsyncNotifyWhenDone(Tag(kServerDone));
    service->RequestCall(&context_, &stream_, queue_, queue_, Tag(kStarted));
    void* tag = nullptr;
    bool ok = false;
    return queue_->Next(&tag, &ok) && ok;
  }
  void Run() {
    method_ = context_.method().substr(1);  // Without its first slash.
    const CallFates::Call call = fates_->Next(method_);
    fate_ = call.fate;
    ++under_way_;  // kServerDone.
    std::this_thread::sleep_for(std::chrono::milliseconds(call.delay_ms));
    messages_left_ = call.cut_after;
    if (fate_ == Fate::kRequestLost) {
      FinishServer(Lost());
    } else if (fate_ == Fate::kRepeated) {
      ReadServer();  // A call that is begun before its request is known would wait for that.
    } else {
      StartClient();
    }
    Pump();
  }

 private:
  enum Event {
    kStarted = 1,
    kServerRead,
    kServerWrote,
    kClientWrote,
    kClientDone,
    kClientRead,
    kClientFinished,
    kServerFinished,
    kServerDone  // The caller has heard the end, or is gone.
  };
  static void* Tag(Event event) { return reinterpret_cast<void*>(static_cast<intptr_t>(event)); }
  static grpc::Status Lost() { return {grpc::StatusCode::UNAVAILABLE, "lost on the way"}; }

  void CopyTo(grpc::ClientContext* to) const {
    for (const auto& [key, value] : context_.client_metadata()) {
      const std::string name(key.data(), key.size());
      if (absl::StartsWith(name, "tessera-"))
        to->AddMetadata(name, std::string(value.data(), value.size()));
    }
    to->set_deadline(context_.deadline());
  }
  // Until the server's side is finished and nothing is under way.
  void Pump() {
    void* tag = nullptr;
    bool ok = false;
    while (!finished_ || under_way_ > 0) {
      if (!queue_->Next(&tag, &ok)) return;
      On(static_cast<Event>(reinterpret_cast<intptr_t>(tag)), ok);
    }
  }
  void On(Event event, bool ok) {
    switch (event) {
      case kStarted:
        if (!ok) return FinishClient();
        ReadClient();
        return fate_ == Fate::kRepeated ? WriteClient() : ReadServer();
      case kServerRead:
        --under_way_;
        if (client_ == nullptr) return ok ? Repeat() : FinishServer(Lost());
        if (!ok) return EndClient();
        return IsCut() ? client_context_.TryCancel() : WriteClient();
      case kClientWrote:
        --under_way_;
        if (ok) ReadServer();
        return;
      case kClientDone:
        --under_way_;
        return;
      case kClientRead:
        --under_way_;
        if (!ok) return FinishClient();
        if (IsCut()) client_context_.TryCancel();
        if (fate_ == Fate::kReplyLost) return ReadClient();
        ++under_way_;
        return stream_.Write(down_, Tag(kServerWrote));
      case kServerWrote:
        --under_way_;
        if (!ok) client_context_.TryCancel();
        return ReadClient();
      case kClientFinished:
        --under_way_;
        if (fate_ == Fate::kCut) Cut();
        if (fate_ == Fate::kReplyLost || fate_ == Fate::kCut) status_ = Lost();
        return FinishServer(status_);
      case kServerFinished:
        --under_way_;
        finished_ = true;
        return;
      case kServerDone:
        --under_way_;
        if (context_.IsCancelled() && client_ != nullptr) client_context_.TryCancel();
        return;
    }
  }
  // Before the next message.
  bool IsCut() {
    if (fate_ != Fate::kCut) return false;
    if (!cut_ && --messages_left_ == 0) Cut();
    return cut_;
  }
  void Cut() {
    if (!cut_) fates_->NoteCut(method_);
    cut_ = true;
  }
  void ReadServer() {
    ++under_way_;
    stream_.Read(&up_, Tag(kServerRead));
  }
  void ReadClient() {
    ++under_way_;
    client_->Read(&down_, Tag(kClientRead));
  }
  void StartClient() {
    CopyTo(&client_context_);
    client_ = stub_->PrepareCall(&client_context_, context_.method(), queue_);
    client_->StartCall(Tag(kStarted));
  }
  void WriteClient() {
    ++under_way_;
    client_->Write(up_, Tag(kClientWrote));
  }
  void EndClient() {
    ++under_way_;
    client_->WritesDone(Tag(kClientDone));
  }
  void FinishClient() {
    ++under_way_;
    client_->Finish(&status_, Tag(kClientFinished));
  }
  void FinishServer(const grpc::Status& status) {
    ++under_way_;
    stream_.Finish(status, Tag(kServerFinished));
  }
  void Repeat() {
    AskOnce(up_);
    StartClient();
  }
  // The same request. Nobody hears the reply, of which the first message is awaited.
  void AskOnce(const grpc::ByteBuffer& request) {
    grpc::ClientContext other;
    CopyTo(&other);
    grpc::CompletionQueue other_queue;
    const auto once = stub_->PrepareCall(&other, context_.method(), &other_queue);
    const auto await = [&other_queue] {
      void* tag = nullptr;
      bool ok = false;
      return other_queue.Next(&tag, &ok) && ok;
    };
    once->StartCall(nullptr);
    if (await()) {
      once->WriteLast(request, grpc::WriteOptions(), nullptr);
      await();
    }
    grpc::ByteBuffer reply;
    once->Read(&reply, nullptr);
    if (await() && KindOf(method_) == CallKind::kServerStream) other.TryCancel();
    grpc::Status ignored;
    once->Finish(&ignored, nullptr);
    await();
  }

  grpc::GenericStub* const stub_;
  CallFates* const fates_;
  grpc::ServerCompletionQueue* const queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  grpc::ClientContext client_context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> client_;
  grpc::ByteBuffer up_, down_;
  grpc::Status status_;
  std::string method_;
  Fate fate_ = Fate::kHandedOn;
  bool cut_ = false, finished_ = false;
  int messages_left_ = 0;  // Until the stream is cut.
  int under_way_ = 0;
};

int Main(const std::string& target, const std::string& listen, const std::string& port_file,
         CallFates* fates) {
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, 64 << 20);
  DialOptions dial = {target};
  dial.is_coordinator = false;  // Callers send their own token.
  const auto channel = OpenChannel(dial, arguments);
  if (!channel.ok()) return 1;
  grpc::GenericStub stub(*channel);
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(64 << 20);
  PermitPings(&builder);
  builder.RegisterAsyncGenericService(&service);
  // As many calls at a time.
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues;
  for (int i = 0; i < kCallsAtATime; ++i) queues.push_back(builder.AddCompletionQueue());
  const auto server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  for (const auto& queue : queues) {
    std::thread([&, queue = queue.get()] {
      while (true) {
        Call call(&stub, fates, queue);
        if (!call.Await(&service)) return;
        call.Run();
      }
    }).detach();
  }
  std::ofstream(port_file + ".tmp") << port << "\n";
  std::rename((port_file + ".tmp").c_str(), port_file.c_str());
  int signal = 0;
  sigwait(&ending, &signal);
  fprintf(stderr, "%s", fates->Describe().c_str());
  _exit(0);  // Calls that are under way end with it.
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  tessera::CallFates fates(strtoull(argv[4], nullptr, 10), atoi(argv[5]));
  return tessera::Main(argv[1], argv[2], argv[3], &fates);
}
