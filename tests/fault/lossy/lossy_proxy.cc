// A gRPC server that hands every call on to another one, and loses, repeats and delays what it is
// told by a seeded dice, as a bad network with retries does:
//
//   request lost      UNAVAILABLE, and the server never heard of it
//   reply lost        UNAVAILABLE, though the server has done it
//   repeated          (calls of one message alone) the server is asked twice, the caller hears once
//   delayed           before the server is asked
//   stream cut        after some messages, on both sides
//
//   lossy_proxy TARGET PORT_FILE SEED PER_MILLE
//
// Of 1,000 calls so many get each of these fates. Knows no service: messages are bytes. Says on
// standard error at its end, by SIGTERM, how many calls had which fate.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "net/credentials.h"
#include "proto/coordinator.pb.h"
#include "proto/hand_over.pb.h"
#include "proto/saves.pb.h"

namespace tessera {
namespace {

constexpr int kCallsAtATime = 64;

enum class Fate { kNone, kLoseRequest, kLoseReply, kRepeat, kDelay, kCut, kCount };

class Dice {
 public:
  Dice(uint64_t seed, int per_mille) : random_(seed), per_mille_(per_mille) {}

  // A call of one message each way is not cut; a stream is neither repeated nor is its reply lost,
  // and the one that lasts is cut, unless its request is lost.
  Fate Next(bool is_unary, bool lasts) {
    std::lock_guard<std::mutex> lock(mu_);
    const int fate = static_cast<int>(random_() % 1000) / std::max(per_mille_, 1) + 1;
    const bool has_one = per_mille_ > 0 && fate < static_cast<int>(Fate::kCount);
    Fate chosen = has_one ? static_cast<Fate>(fate) : Fate::kNone;
    if (is_unary && chosen == Fate::kCut) chosen = Fate::kNone;
    if (!is_unary && (chosen == Fate::kRepeat || chosen == Fate::kLoseReply)) chosen = Fate::kNone;
    if (lasts && chosen != Fate::kLoseRequest && per_mille_ > 0) chosen = Fate::kCut;
    ++counts_[static_cast<int>(chosen)];
    return chosen;
  }
  int Below(int end) {
    std::lock_guard<std::mutex> lock(mu_);
    return static_cast<int>(random_() % end);
  }
  std::string Describe() {
    std::lock_guard<std::mutex> lock(mu_);
    return absl::StrCat(counts_[0], " handed on, ", counts_[1], " requests lost, ", counts_[2],
                        " replies lost, ", counts_[3], " repeated, ", counts_[4], " delayed, ",
                        counts_[5], " cut");
  }

 private:
  std::mutex mu_;
  std::mt19937_64 random_;
  const int per_mille_;
  int counts_[static_cast<int>(Fate::kCount)] = {};
};

// Of calls of one message each way, which alone can be repeated.
bool IsUnary(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (path.empty() || slash == 0 || slash == std::string::npos) return false;
  const auto* method = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(
      absl::StrCat(path.substr(1, slash - 1), ".", path.substr(slash + 1)));
  return method != nullptr && !method->client_streaming() && !method->server_streaming();
}

// One call, on a thread and a queue that serve no other meanwhile.
class Call {
 public:
  Call(grpc::GenericStub* stub, Dice* dice, grpc::ServerCompletionQueue* queue)
      : stub_(stub), dice_(dice), queue_(queue), stream_(&context_) {}

  // Waits for a call. False: the server ends.
  bool Await(grpc::AsyncGenericService* service) {
    service->RequestCall(&context_, &stream_, queue_, queue_, Tag(kStarted));
    void* tag = nullptr;
    bool ok = false;
    return queue_->Next(&tag, &ok) && ok;
  }
  void Run() {
    const std::string path = context_.method();
    const Fate fate = dice_->Next(IsUnary(path), absl::EndsWith(path, "/Connect"));
    if (fate == Fate::kLoseRequest) return End(Lost());
    if (fate == Fate::kDelay)
      std::this_thread::sleep_for(std::chrono::milliseconds(dice_->Below(50)));
    if (fate == Fate::kCut) messages_left_ = 1 + dice_->Below(40);
    repeats_ = fate == Fate::kRepeat;
    loses_reply_ = fate == Fate::kLoseReply;
    CopyTo(&client_context_);
    client_ = stub_->PrepareCall(&client_context_, path, queue_);
    client_->StartCall(Tag(kStarted));
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
    kServerFinished
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
  void End(const grpc::Status& status) {
    ++under_way_;
    stream_.Finish(status, Tag(kServerFinished));
    Pump();
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
        ReadServer();
        ReadClient();
        return;
      case kServerRead:
        --under_way_;
        if (!ok) {
          ++under_way_;
          return client_->WritesDone(Tag(kClientDone));
        }
        if (IsCut()) return client_context_.TryCancel();
        if (repeats_) AskOnce(up_);
        ++under_way_;
        return client_->Write(up_, Tag(kClientWrote));
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
        if (loses_reply_) return ReadClient();
        ++under_way_;
        return stream_.Write(down_, Tag(kServerWrote));
      case kServerWrote:
        --under_way_;
        if (!ok) client_context_.TryCancel();
        return ReadClient();
      case kClientFinished:
        --under_way_;
        if (loses_reply_ || cut_) status_ = Lost();
        ++under_way_;
        return stream_.Finish(status_, Tag(kServerFinished));
      case kServerFinished:
        --under_way_;
        finished_ = true;
        return;
    }
  }
  bool IsCut() {
    if (messages_left_ < 0 || --messages_left_ > 0) return cut_;
    cut_ = true;
    return true;
  }
  void ReadServer() {
    ++under_way_;
    stream_.Read(&up_, Tag(kServerRead));
  }
  void ReadClient() {
    ++under_way_;
    client_->Read(&down_, Tag(kClientRead));
  }
  void FinishClient() {
    ++under_way_;
    client_->Finish(&status_, Tag(kClientFinished));
  }
  // The same request, whose reply nobody hears.
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
    do {
      once->Read(&reply, nullptr);
    } while (await());
    grpc::Status ignored;
    once->Finish(&ignored, nullptr);
    await();
  }

  grpc::GenericStub* const stub_;
  Dice* const dice_;
  grpc::ServerCompletionQueue* const queue_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  grpc::ClientContext client_context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> client_;
  grpc::ByteBuffer up_, down_;
  grpc::Status status_;
  bool repeats_ = false, loses_reply_ = false, cut_ = false, finished_ = false;
  int messages_left_ = -1;  // Of a stream that is cut.
  int under_way_ = 0;
};

int Main(const std::string& target, const std::string& port_file, uint64_t seed, int per_mille) {
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  // What the generated pool knows is what is linked.
  (void)v1::Job::descriptor();
  (void)v1::Save::descriptor();
  (void)v1::HandOverInfo::descriptor();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, 64 << 20);
  DialOptions dial = {target};
  dial.is_coordinator = false;  // Callers send their own token.
  const auto channel = OpenChannel(dial, arguments);
  if (!channel.ok()) return 1;
  grpc::GenericStub stub(*channel);
  Dice dice(seed, per_mille);
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
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
        Call call(&stub, &dice, queue);
        if (!call.Await(&service)) return;
        call.Run();
      }
    }).detach();
  }
  std::ofstream(port_file + ".tmp") << port << "\n";
  std::rename((port_file + ".tmp").c_str(), port_file.c_str());
  int signal = 0;
  sigwait(&ending, &signal);
  fprintf(stderr, "%s\n", dice.Describe().c_str());
  _exit(0);  // Calls that are under way end with it.
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  return tessera::Main(argv[1], argv[2], strtoull(argv[3], nullptr, 10), atoi(argv[4]));
}
