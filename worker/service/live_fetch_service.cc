#include "worker/service/live_fetch_service.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/start_thread.h"
#include "base/status_macros.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpc/slice.h"
#include "net/caller_version.h"
#include "proto/grpc_status.h"

namespace tessera {
namespace {

absl::StatusOr<std::string> SessionOf(const grpc::ByteBuffer& request) {
  grpc::ByteBuffer bytes = request;
  v1::LiveFetchRequest message;
  const grpc::Status parsed =
      grpc::SerializationTraits<v1::LiveFetchRequest>::Deserialize(&bytes, &message);
  if (!parsed.ok()) return absl::InvalidArgumentError("the request is no LiveFetchRequest");
  return message.session();
}

}  // namespace

grpc::ByteBuffer EncodeLivePiece(int64_t offset_elements, const grpc::Slice& data) {
  // Encoded by hand, so that the data's slice is sent as it is. It is what LivePiece would be.
  using google::protobuf::internal::WireFormatLite;
  uint8_t head[32];
  uint8_t* end = head;
  if (offset_elements != 0) {
    end = WireFormatLite::WriteInt64ToArray(v1::LivePiece::kOffsetElementsFieldNumber,
                                            offset_elements, end);
  }
  end = WireFormatLite::WriteTagToArray(v1::LivePiece::kDataFieldNumber,
                                        WireFormatLite::WIRETYPE_LENGTH_DELIMITED, end);
  end = google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(data.size(), end);
  const grpc::Slice slices[] = {grpc::Slice(head, end - head), data};
  return grpc::ByteBuffer(slices, 2);
}

// Deletes itself when gRPC is done with it.
class LiveFetchService::Call : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  Call(LiveFetchService* service, grpc::CallbackServerContext* context)
      : service_(service), context_(context) {}

  void Start(const grpc::ByteBuffer& request) {
    const absl::Status started = TryStart(request);
    if (!started.ok()) Finish(ToGrpcStatus(started));
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    (ok ? is_written_ : is_gone_) = true;
  }
  void OnDone() override {
    // Maybe by that thread itself.
    if (thread_.joinable()) service_->TakeThread(std::move(thread_));
    delete this;
  }

 private:
  absl::Status TryStart(const grpc::ByteBuffer& request) {
    RETURN_IF_ERROR(CheckCaller(*context_));
    ASSIGN_OR_RETURN(const std::string session, SessionOf(request));
    source_ = service_->sources_->Find(session);
    // A session's number is its only key, and works once.
    if (source_ == nullptr || !source_->Enter([this] { context_->TryCancel(); }))
      return absl::NotFoundError("no state waits for a client of this session");
    const absl::Status started = StartThread();
    if (!started.ok()) source_->Leave(started);
    return started;
  }

  absl::Status StartThread() {
    // It must not be done before `thread_` is set.
    absl::MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(thread_,
                     tessera::StartThread("a client that fetches a state", [this] { SendAll(); }));
    return absl::OkStatus();
  }

  void SendAll() {
    const absl::Status status = SendPieces();
    source_->Leave(status);
    { absl::MutexLock lock(&mu_); }  // `thread_` is set.
    Finish(ToGrpcStatus(status));
  }

  absl::Status SendPieces() {
    while (true) {
      // The snapshot writes into the slice that gRPC sends: no copy in between.
      grpc_slice data = grpc_empty_slice();
      const auto piece = source_->Next([&data](int64_t size_bytes) {
        // Never one whose bytes are within the slice itself, and would move with it.
        data = grpc_slice_malloc_large(size_bytes);
        return reinterpret_cast<char*>(GRPC_SLICE_START_PTR(data));
      });
      // Owned on each path: a failed read must not leak it.
      const grpc::Slice owned(data, grpc::Slice::STEAL_REF);
      if (!piece.ok()) return piece.status();
      if (!piece->has_value()) return absl::OkStatus();
      piece_ = EncodeLivePiece((*piece)->offset_elements, owned);
      StartWrite(&piece_);
      const auto is_answered = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return is_written_ || is_gone_;
      };
      absl::MutexLock lock(&mu_);
      // The session ends the call of a client that takes nothing.
      mu_.Await(absl::Condition(&is_answered));
      if (is_gone_) return absl::CancelledError("the client is gone");
      is_written_ = false;
    }
  }

  LiveFetchService* const service_;
  grpc::CallbackServerContext* const context_;
  std::shared_ptr<LiveSource> source_;
  grpc::ByteBuffer piece_;  // That is being written.
  absl::Mutex mu_;
  bool is_written_ ABSL_GUARDED_BY(mu_) = false;
  bool is_gone_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // Set before the call can be done, so OnDone reads it without a lock.
};

LiveFetchService::~LiveFetchService() {
  for (std::thread& thread : threads_) thread.join();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* LiveFetchService::Fetch(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  auto* const call = new Call(this, context);
  call->Start(*request);
  return call;
}

void LiveFetchService::TakeThread(std::thread thread) {
  std::vector<std::thread> earlier;
  {
    absl::MutexLock lock(&mu_);
    earlier.swap(threads_);
    threads_.push_back(std::move(thread));
  }
  for (std::thread& one : earlier) one.join();
}

}  // namespace tessera
