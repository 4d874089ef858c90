// The Worker service of proto/worker.proto over a Keeper. Thread-safe.
#ifndef TESSERA_WORKER_SERVICE_WORKER_SERVICE_H_
#define TESSERA_WORKER_SERVICE_WORKER_SERVICE_H_

#include <functional>
#include <string>

#include "proto/worker.grpc.pb.h"
#include "worker/keeper/keeper.h"

namespace tessera {

class WorkerService final : public v1::Worker::Service {
 public:
  struct Options {
    std::string worker_id;
    std::function<int64_t()> incarnation;
    int num_devices = 0;
    std::string device;
    std::function<bool()> coordinator_connected;
    std::function<std::string()> cluster;  // As CoordinatorAgent::cluster.
  };
  // `keeper` outlives the service.
  WorkerService(Options options, Keeper* keeper) : options_(std::move(options)), keeper_(keeper) {}

  grpc::Status GetStatus(grpc::ServerContext* context, const v1::WorkerStatusRequest* request,
                         v1::WorkerStatusResponse* response) override;
  grpc::Status DumpRank(grpc::ServerContext* context, const v1::DumpRankRequest* request,
                        v1::DumpRankResponse* response) override;

 private:
  const Options options_;
  Keeper* const keeper_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_SERVICE_WORKER_SERVICE_H_
