#include "worker/service/live_fetch_service.h"

#include <cstdint>
#include <memory>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpc/slice.h"
#include "net/caller_version.h"
#include "proto/grpc_status.h"

namespace tessera {
namespace {

constexpr char kFetch[] = "/tessera.v1.LiveFetch/Fetch";

absl::Status Send(LiveSource* source, grpc::ServerWriter<grpc::ByteBuffer>* writer) {
  while (true) {
    // The snapshot writes into the slice that gRPC sends: no copy in between.
    grpc_slice data = grpc_empty_slice();
    const auto piece = source->Next([&data](int64_t size_bytes) {
      // Never one whose bytes are within the slice itself, and would move with it.
      data = grpc_slice_malloc_large(size_bytes);
      return reinterpret_cast<char*>(GRPC_SLICE_START_PTR(data));
    });
    // Owned on each path: a failed read must not leak it.
    const grpc::Slice owned(data, grpc::Slice::STEAL_REF);
    if (!piece.ok()) return piece.status();
    if (!piece->has_value()) return absl::OkStatus();
    if (!writer->Write(EncodeLivePiece((*piece)->offset_elements, owned)))
      return absl::CancelledError("the client is gone");
  }
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

LiveFetchService::LiveFetchService(LiveSources* sources) : sources_(sources) {
  // With a raw buffer as response, which generated services do not offer.
  AddMethod(new grpc::internal::RpcServiceMethod(
      kFetch, grpc::internal::RpcMethod::SERVER_STREAMING,
      new grpc::internal::ServerStreamingHandler<LiveFetchService, v1::LiveFetchRequest,
                                                 grpc::ByteBuffer>(
          [](LiveFetchService* service, grpc::ServerContext* context,
             const v1::LiveFetchRequest* request,
             Writer* writer) { return service->Fetch(context, request, writer); },
          this)));
}

grpc::Status LiveFetchService::Fetch(grpc::ServerContext* context,
                                     const v1::LiveFetchRequest* request, Writer* writer) {
  if (absl::Status status = CheckCaller(*context); !status.ok()) return ToGrpcStatus(status);
  const std::shared_ptr<LiveSource> source = sources_->Find(request->session());
  // A session's number is its only key, and works once.
  if (source == nullptr || !source->Enter([context] { context->TryCancel(); }))
    return ToGrpcStatus(absl::NotFoundError("no state waits for a client of this session"));
  const absl::Status status = Send(source.get(), writer);
  // After the last write: from here on the context is not used.
  source->Leave(status);
  return ToGrpcStatus(status);
}

}  // namespace tessera
