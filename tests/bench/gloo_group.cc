#include "tests/bench/gloo_group.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <map>
#include <utility>
#include <vector>

namespace tessera {
namespace bench {

using ReduceScatterAlgorithm = gloo::ReduceScatterHalvingDoubling<float>;

struct GlooGroup::State {
  std::shared_ptr<gloo::rendezvous::Context> context;
  std::map<std::pair<float*, int64_t>, std::unique_ptr<ReduceScatterAlgorithm>> reduce_scatters;
};

GlooGroup::GlooGroup(const std::string& directory, int rank, int size)
    : state_(std::make_unique<State>()) {
  gloo::rendezvous::FileStore store(directory);
  state_->context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  state_->context->connectFullMesh(store, device);
}

GlooGroup::~GlooGroup() = default;

void GlooGroup::Barrier() {
  gloo::BarrierOptions options(state_->context);
  gloo::barrier(options);
}

void GlooGroup::AllGather(const float* send, int64_t count, float* recv) {
  gloo::AllgatherOptions options(state_->context);
  options.setInput(const_cast<float*>(send), count);
  options.setOutput(recv, count * state_->context->size);
  gloo::allgather(options);
}

void GlooGroup::AllReduce(float* buffer, int64_t count) {
  gloo::AllreduceOptions options(state_->context);
  options.setOutput(buffer, count);
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
  gloo::allreduce(options);
}

void GlooGroup::ReduceScatter(float* buffer, int64_t count) {
  std::unique_ptr<ReduceScatterAlgorithm>& algorithm = state_->reduce_scatters[{buffer, count}];
  if (algorithm == nullptr) {
    const int size = state_->context->size;
    const std::vector<int> recv_counts(size, static_cast<int>(count / size));
    algorithm = std::make_unique<ReduceScatterAlgorithm>(
        state_->context, std::vector<float*>{buffer}, static_cast<int>(count), recv_counts);
  }
  algorithm->run();
}

}  // namespace bench
}  // namespace tessera
