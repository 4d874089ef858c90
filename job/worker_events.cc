#include "job/worker_events.h"

#include "base/status_macros.h"
#include "job/field_limits.h"
#include "job/job_codec.h"
#include "job/job_config.h"

namespace tessera {
namespace {

constexpr int64_t kMaxRemoved = 4096;  // Checkpoints by one save.

}  // namespace

// The numbers come from executors. Sums and differences of them must not overflow.
absl::Status CheckOrder(const v1::OrderAnnouncement& order) {
  RETURN_IF_ERROR(CheckRange("order: step", order.step(), 0, kMaxCounter));
  RETURN_IF_ERROR(CheckRange("order: sequence", order.sequence(), 0, kMaxSequence - 1));
  RETURN_IF_ERROR(CheckRange("order: pass", order.pass(), 0, kMaxCounter));
  RETURN_IF_ERROR(CheckRange("order: count", order.entry().count(), 0, kMaxCounter));
  RETURN_IF_ERROR(CheckName("order: operation", order.entry().operation()));
  return Annotate(DecodeDType(order.entry().dtype()).status(), "order");
}

absl::Status CheckStepReport(const v1::StepReport& step) {
  RETURN_IF_ERROR(CheckRange("step report: number of earlier hashes",
                             step.earlier_order_hashes_size(), 0, kMaxEarlierReports));
  // Each hash is of one of the steps right before it, of which there are only so many.
  return CheckRange("step report: step", step.step(), step.earlier_order_hashes_size(),
                    kMaxCounter);
}

absl::Status CheckSaveReport(const v1::SaveReport& report) {
  RETURN_IF_ERROR(CheckRange("save report: phase", report.phase(), v1::SaveReport::BEGUN,
                             v1::SaveReport::ENDED));
  RETURN_IF_ERROR(CheckRange("save report: ordinal", report.ordinal(), 1, kMaxCounter));
  RETURN_IF_ERROR(CheckRange("save report: number", report.number(), 0, kMaxCounter));
  RETURN_IF_ERROR(CheckRange("save report: step", report.step(), 0, kMaxCounter));
  RETURN_IF_ERROR(CheckRange("save report: written_bytes", report.written_bytes(), 0, kMaxCounter));
  RETURN_IF_ERROR(CheckRange("save report: all_bytes", report.all_bytes(), 0, kMaxCounter));
  RETURN_IF_ERROR(CheckRange("save report: took_ms", report.took_ms(), 0, kMaxCounter));
  RETURN_IF_ERROR(CheckRange("save report: size_bytes", report.size_bytes(), 0, kMaxCounter));
  return CheckRange("save report: number of removed checkpoints", report.removed_size(), 0,
                    kMaxRemoved);
}

absl::Status CheckRankAddress(absl::string_view address) {
  return CheckName("rank address", address);
}

}  // namespace tessera
