#include "tests/bench/plain_stream.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "grpcpp/grpcpp.h"
#include "net/credentials.h"
#include "proto/live_state.grpc.pb.h"

namespace tessera {
namespace bench {
namespace {

constexpr int64_t kMessageBytes = 1 << 20;

}  // namespace

struct PlainStreamServer::State {
  class Service final : public v1::LiveState::Service {
   public:
    explicit Service(int64_t most_bytes) : memory_(most_bytes, 'x') {}
    // What it shall send stands where a job's name would; moments: the same again.
    grpc::Status GetLiveState(grpc::ServerContext*, const v1::LiveStateQuery* query,
                              grpc::ServerWriter<v1::LiveStateReply>* writer) override {
      int64_t left = 0;
      TESSERA_CHECK(absl::SimpleAtoi(query->job_id(), &left));
      const bool again = query->moments();
      TESSERA_CHECK(left % kMessageBytes == 0 &&
                    (again || left <= static_cast<int64_t>(memory_.size())));
      v1::LiveStateReply reply;
      const char* next = memory_.data();
      reply.mutable_piece()->mutable_data()->assign(next, kMessageBytes);
      for (; left > 0 && writer->Write(reply); left -= kMessageBytes) {
        if (again || left == kMessageBytes) continue;
        next += kMessageBytes;
        reply.mutable_piece()->mutable_data()->assign(next, kMessageBytes);
      }
      return grpc::Status::OK;
    }

   private:
    const std::string memory_;
  };
  explicit State(int64_t most_bytes) : service(most_bytes) {}
  Service service;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

PlainStreamServer::PlainStreamServer(int64_t most_bytes)
    : state_(std::make_unique<State>(most_bytes)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &state_->port);
  builder.RegisterService(&state_->service);
  state_->server = builder.BuildAndStart();
  TESSERA_CHECK(state_->server != nullptr);
}

PlainStreamServer::~PlainStreamServer() = default;

int PlainStreamServer::port() const { return state_->port; }

struct StreamClient::State {
  std::unique_ptr<v1::LiveState::Stub> stub;
  std::string worker_address;  // Which `fetch` is of.
  std::unique_ptr<v1::LiveFetch::Stub> fetch;
};

StreamClient::StreamClient(const std::string& address) : state_(std::make_unique<State>()) {
  state_->stub = v1::LiveState::NewStub(*OpenChannel({address}, {}));
}

StreamClient::~StreamClient() = default;

double StreamClient::SecondsForPlain(int64_t bytes, bool again) {
  return Seconds(absl::StrCat(bytes), again, bytes);
}

double StreamClient::SecondsFor(const std::string& job, int64_t bytes) {
  return Seconds(job, /*moments=*/true, bytes);
}

double StreamClient::Seconds(const std::string& job, bool moments, int64_t bytes) {
  const int64_t start_ns = absl::GetCurrentTimeNanos();
  grpc::ClientContext context;
  v1::LiveStateQuery query;
  query.set_job_id(job);
  query.set_moments(moments);
  const auto stream = state_->stub->GetLiveState(&context, query);
  v1::LiveStateReply reply;
  int64_t got = 0;
  while (stream->Read(&reply)) got += static_cast<int64_t>(reply.piece().data().size());
  const grpc::Status status = stream->Finish();
  if (!status.ok()) fprintf(stderr, "stream: %s\n", status.error_message().c_str());
  TESSERA_CHECK(status.ok() && got == bytes);
  return 1e-9 * static_cast<double>(absl::GetCurrentTimeNanos() - start_ns);
}

double StreamClient::SecondsForFetch(const std::string& job, int64_t bytes) {
  const int64_t start_ns = absl::GetCurrentTimeNanos();
  grpc::ClientContext context;
  v1::LiveStateQuery query;
  query.set_job_id(job);
  query.set_moments(true);
  query.set_direct(true);
  const auto stream = state_->stub->GetLiveState(&context, query);
  v1::LiveStateReply reply;
  TESSERA_CHECK(stream->Read(&reply) && stream->Read(&reply));
  TESSERA_CHECK(reply.sources().sources_size() == 1);
  const v1::LiveSource source = reply.sources().sources(0);
  const std::string& address = *source.addresses().rbegin();
  if (state_->worker_address != address) {
    state_->worker_address = address;
    state_->fetch = v1::LiveFetch::NewStub(*OpenChannel({address}, {}));
  }
  grpc::ClientContext fetch_context;
  v1::LiveFetchRequest request;
  request.set_session(source.session());
  const auto fetch = state_->fetch->Fetch(&fetch_context, request);
  v1::LivePiece piece;
  int64_t got = 0;
  while (fetch->Read(&piece)) got += static_cast<int64_t>(piece.data().size());
  const grpc::Status fetched = fetch->Finish();
  while (stream->Read(&reply)) {
  }
  const grpc::Status status = stream->Finish();
  for (const grpc::Status* each : {&fetched, &status})
    if (!each->ok()) fprintf(stderr, "fetch: %s\n", each->error_message().c_str());
  TESSERA_CHECK(fetched.ok() && status.ok() && got == bytes);
  return 1e-9 * static_cast<double>(absl::GetCurrentTimeNanos() - start_ns);
}

}  // namespace bench
}  // namespace tessera
