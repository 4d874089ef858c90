#include "worker/comm/direct_communicators.h"

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

// Small operations go through host memory, mapped buffers over the device's own library.
class ControlAndDirect : public Communicator {
 public:
  ControlAndDirect(std::unique_ptr<Communicator> control, std::unique_ptr<Communicator> direct)
      : control_(std::move(control)), direct_(std::move(direct)) {}

  int rank() const override { return control_->rank(); }
  int size() const override { return control_->size(); }
  absl::Status Barrier() override { return control_->Barrier(); }
  absl::Status AllGather(const void* send, void* recv, int64_t bytes_per_rank) override {
    return control_->AllGather(send, recv, bytes_per_rank);
  }
  absl::Status ReduceScatter(const void* send, host::SumOutput recv, int64_t count_per_rank,
                             ElementType type, double scale) override {
    return control_->ReduceScatter(send, recv, count_per_rank, type, scale);
  }
  absl::Status AllReduce(void* buffer, int64_t count, ElementType type, ReduceOp op,
                         double scale) override {
    return control_->AllReduce(buffer, count, type, op, scale);
  }
  absl::Status Broadcast(void* buffer, int64_t bytes, int root) override {
    return control_->Broadcast(buffer, bytes, root);
  }
  absl::Status AllGatherMapped(std::byte* base, int64_t bytes_per_rank) override {
    return direct_->AllGatherMapped(base, bytes_per_rank);
  }
  absl::Status ReduceScatterMapped(absl::Span<const void* const> sends_by_rank,
                                   absl::Span<const ElementRange> slices_by_rank,
                                   absl::Span<const ElementRange> parts, DType dtype, double scale,
                                   bool accumulate, host::SumOutput recv,
                                   host::GradientStats* stats) override {
    return direct_->ReduceScatterMapped(sends_by_rank, slices_by_rank, parts, dtype, scale,
                                        accumulate, recv, stats);
  }
  // Both end: the direct one looks at the other.
  void Abort(absl::Status reason) override { control_->Abort(std::move(reason)); }
  int64_t payload_bytes_copied() const override {
    return control_->payload_bytes_copied() + direct_->payload_bytes_copied();
  }

 private:
  const std::unique_ptr<Communicator> control_;  // Outlives the other.
  const std::unique_ptr<Communicator> direct_;
};

}  // namespace

absl::optional<std::pair<int, int>> RanksOfOneDevice(absl::Span<const DirectPlace> places) {
  // An unknown place is not compared: then the library was told to share GPUs, or says itself what
  // is wrong. Older versions compare slots, which the parts of one GPU have in common.
  const auto are_one = [](const DirectPlace& a, const DirectPlace& b) {
    if (a.device == DeviceUuid{} || b.device == DeviceUuid{}) return false;
    return (a.device == b.device && a.apart == b.apart) || (a.slot != 0 && a.slot == b.slot);
  };
  for (size_t second = 1; second < places.size(); ++second) {
    for (size_t first = 0; first < second; ++first) {
      if (are_one(places[first], places[second])) return std::make_pair(first, second);
    }
  }
  return absl::nullopt;
}

std::string DescribeShared(std::pair<int, int> ranks, absl::Span<const DirectPlace> places) {
  const DirectPlace &first = places[ranks.first], &second = places[ranks.second];
  const std::string which =
      first.device == second.device
          ? absl::StrCat("are both on ", UuidText(first.device))
          : absl::StrCat("are on ", UuidText(first.device), " and ", UuidText(second.device),
                         ", which are parts of one GPU");
  return absl::StrCat("ranks ", ranks.first, " and ", ranks.second, " ", which,
                      ": one rank of a GPU can join");
}

std::unique_ptr<Communicator> JoinControlAndDirect(std::unique_ptr<Communicator> control,
                                                   std::unique_ptr<Communicator> direct) {
  return std::make_unique<ControlAndDirect>(std::move(control), std::move(direct));
}

}  // namespace tessera
