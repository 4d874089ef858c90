#include "client/live/live_client.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "client/live/live_fetch.h"
#include "client/live/live_info.h"
#include "grpcpp/grpcpp.h"
#include "proto/grpc_status.h"
#include "proto/live_state.grpc.pb.h"

namespace tessera {
namespace {

class GrpcLiveClient : public LiveClient {
 public:
  GrpcLiveClient(DialOptions coordinator, absl::Duration list_timeout, const Keepalive& keepalive,
                 const std::shared_ptr<grpc::Channel>& channel)
      : coordinator_(std::move(coordinator)),
        list_timeout_(list_timeout),
        keepalive_(keepalive),
        stub_(v1::LiveState::NewStub(channel)) {}

  absl::StatusOr<std::vector<v1::LiveTensorInfo>> List(const v1::LiveStateQuery& query) override {
    grpc::ClientContext context;
    context.set_deadline(GrpcDeadline(SteadyNow() + list_timeout_));
    const auto reader = stub_->ListLiveState(&context, query);
    std::vector<v1::LiveTensorInfo> tensors;
    v1::LiveTensorInfo tensor;
    while (reader->Read(&tensor)) tensors.push_back(std::move(tensor));
    RETURN_IF_ERROR(Named(reader->Finish()));
    return tensors;
  }

  absl::Status Get(const v1::LiveStateQuery& query, Way way, Take take) override {
    if (way == Way::kDirectIfPossible) {
      // Only if nothing was taken yet. Otherwise the caller decides.
      const auto status = GetDirect(query, take);
      if (status.has_value()) return *status;
    }
    grpc::ClientContext context;
    const auto reader = stub_->GetLiveState(&context, query);
    // No deadline: a state may have any size. Keepalive ends a call whose coordinator is gone.
    return TakeAll(reader.get(), &context, take);
  }

 private:
  using Reader = grpc::ClientReader<v1::LiveStateReply>;

  absl::Status Named(const grpc::Status& status) const {
    return Annotate(FromGrpcStatus(status), absl::StrCat("coordinator ", coordinator_.address));
  }

  // To the end of the call.
  absl::Status TakeAll(Reader* reader, grpc::ClientContext* context, Take take) {
    v1::LiveStateReply reply;
    absl::Status taken;
    while (taken.ok() && reader->Read(&reply)) taken = take(reply);
    return End(reader, context, taken);
  }

  // An error of the call's own says more than what followed from it.
  absl::Status End(Reader* reader, grpc::ClientContext* context, const absl::Status& taken) {
    // The coordinator stops sending. What it says of that does not matter.
    if (!taken.ok()) context->TryCancel();
    const absl::Status status = Named(reader->Finish());
    return taken.ok() ? status : taken;
  }

  // Nothing: some worker cannot be reached, and nothing was taken.
  std::optional<absl::Status> GetDirect(v1::LiveStateQuery query, Take take) {
    query.set_direct(true);
    grpc::ClientContext context;
    const auto reader = stub_->GetLiveState(&context, query);
    v1::LiveStateReply begin, sources;
    if (!reader->Read(&begin) || !reader->Read(&sources))
      return End(reader.get(), &context, absl::OkStatus());
    absl::Status taken;
    if (!sources.has_sources()) {
      return End(reader.get(), &context,
                 absl::DataLossError(absl::StrCat("coordinator ", coordinator_.address,
                                                  " does not say which workers have the state")));
    }
    std::vector<std::unique_ptr<LiveFetch>> fetches;
    // All of them before anything is taken: one that cannot be reached leaves the other way open.
    for (const v1::LiveSource& source : sources.sources().sources()) {
      auto fetch = LiveFetch::Open(source, coordinator_, keepalive_);
      if (!fetch.ok()) {
        // Its end is no news.
        (void)End(reader.get(), &context, fetch.status());
        return std::nullopt;
      }
      fetches.push_back(*std::move(fetch));
    }
    const auto take_noted = [&](const v1::LiveStateReply& taken_reply) {
      return taken = take(taken_reply);
    };
    taken = take(begin);
    absl::Status fetched;
    if (taken.ok()) {
      // All of them at once: the coordinator is not to wait for what is fetched between them.
      std::vector<v1::LiveStateReply> tensors;
      const auto num_tensors = static_cast<size_t>(begin.begin().num_tensors());
      v1::LiveStateReply reply;
      while (tensors.size() < num_tensors && reader->Read(&reply)) tensors.push_back(reply);
      for (size_t i = 0; i < tensors.size() && taken.ok() && fetched.ok(); ++i) {
        taken = take(tensors[i]);
        if (taken.ok()) fetched = FetchTensor(tensors[i].tensor(), fetches, take_noted);
      }
    }
    // The workers sent what does not fit. Their call ended well all the same.
    if (absl::IsDataLoss(fetched)) taken = fetched;  // Which the worker does not know of.
    if (!taken.ok()) return End(reader.get(), &context, taken);
    // The call ends as the reading did, and with the cause where a fetch only broke off.
    // Nothing more is expected but the status.
    v1::LiveStateReply rest;
    while (reader->Read(&rest)) {
    }
    const absl::Status status = End(reader.get(), &context, absl::OkStatus());
    // The worker takes a fetch that broke off for a client that left.
    if (!fetched.ok() && absl::IsCancelled(status)) return fetched;
    return fetched.ok() || !status.ok() ? status : fetched;
  }

  // Its elements, from the worker that has them. Ends with the error of `take`, too.
  static absl::Status FetchTensor(const v1::LiveTensorInfo& tensor,
                                  const std::vector<std::unique_ptr<LiveFetch>>& fetches,
                                  Take take) {
    ASSIGN_OR_RETURN(const StoredDType dtype, StoredDTypeOf(tensor));
    const int64_t element_bytes = SizeBits(dtype) / 8;
    v1::LiveStateReply reply;
    for (const v1::LiveExtent& extent : tensor.extents()) {
      // An index from the wire.
      if (extent.source() < 0 || extent.source() >= static_cast<int>(fetches.size()))
        return absl::DataLossError(
            absl::StrCat("tensor '", tensor.name(), "' has an unknown source"));
      for (int64_t done = 0; done < extent.numel();) {
        RETURN_IF_ERROR(fetches[extent.source()]->Next(reply.mutable_piece()));
        const int64_t numel = static_cast<int64_t>(reply.piece().data().size()) / element_bytes;
        // Nothing would end this loop, or the next tensor's elements would be taken for this one's.
        if (numel == 0 || numel > extent.numel() - done)
          return absl::DataLossError(
              absl::StrCat("tensor '", tensor.name(), "': a piece of ", numel, " elements"));
        done += numel;
        RETURN_IF_ERROR(take(reply));
      }
    }
    return absl::OkStatus();
  }

  const DialOptions coordinator_;
  const absl::Duration list_timeout_;
  const Keepalive keepalive_;
  const std::unique_ptr<v1::LiveState::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LiveClient>> LiveClient::Create(const DialOptions& coordinator,
                                                               absl::Duration list_timeout,
                                                               const Keepalive& keepalive) {
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, OpenLiveChannel(coordinator, keepalive));
  return std::make_unique<GrpcLiveClient>(coordinator, list_timeout, keepalive, channel);
}

}  // namespace tessera
