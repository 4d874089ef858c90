// The LiveFetch service of proto/live_state.proto over LiveSources. Thread-safe.
//
// Made by hand of what generated services are made of, so that a piece goes to the network from
// where it was read to: as a message of Protocol Buffers it would be copied once more.
#ifndef TESSERA_WORKER_SERVICE_LIVE_FETCH_SERVICE_H_
#define TESSERA_WORKER_SERVICE_LIVE_FETCH_SERVICE_H_

#include "grpcpp/grpcpp.h"
#include "proto/live_state.grpc.pb.h"
#include "worker/agent/live_sources.h"

namespace tessera {

class LiveFetchService final : public grpc::Service {
 public:
  // `sources` outlives the service.
  explicit LiveFetchService(LiveSources* sources);

 private:
  using Writer = grpc::ServerWriter<grpc::ByteBuffer>;
  grpc::Status Fetch(grpc::ServerContext* context, const v1::LiveFetchRequest* request,
                     Writer* writer);

  LiveSources* const sources_;
};

// A LivePiece as Protocol Buffers write it, around `data`, which is not copied.
grpc::ByteBuffer EncodeLivePiece(int64_t offset_elements, const grpc::Slice& data);

}  // namespace tessera

#endif  // TESSERA_WORKER_SERVICE_LIVE_FETCH_SERVICE_H_
