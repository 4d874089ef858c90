// The LiveFetch service of proto/live_state.proto over LiveSources. Thread-safe.
//
// A piece goes to the network from where it was read to: as a message of Protocol Buffers it would be
// copied once more. Only a fetch of a session has a thread: what is refused has none, so that
// clients who do not read their answers hold nothing but their connections.
#ifndef TESSERA_WORKER_SERVICE_LIVE_FETCH_SERVICE_H_
#define TESSERA_WORKER_SERVICE_LIVE_FETCH_SERVICE_H_

#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/grpcpp.h"
#include "proto/live_state.grpc.pb.h"
#include "worker/agent/live_sources.h"

namespace tessera {

class LiveFetchService final
    : public v1::LiveFetch::WithRawCallbackMethod_Fetch<v1::LiveFetch::Service> {
 public:
  // `sources` outlives the service.
  explicit LiveFetchService(LiveSources* sources) : sources_(sources) {}
  // Its server has been shut down.
  ~LiveFetchService() override;

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Fetch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override;

 private:
  class Call;
  // Of a call that is done. It ends without the service.
  void TakeThread(std::thread thread);

  LiveSources* const sources_;
  absl::Mutex mu_;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);  // That end now, or have.
};

// A LivePiece as Protocol Buffers write it, around `data`, which is not copied.
grpc::ByteBuffer EncodeLivePiece(int64_t offset_elements, const grpc::Slice& data);

}  // namespace tessera

#endif  // TESSERA_WORKER_SERVICE_LIVE_FETCH_SERVICE_H_
