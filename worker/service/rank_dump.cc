#include "worker/service/rank_dump.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/utf8.h"
#include "shm/control_page.h"
#include "shm/flight_ring.h"
#include "worker/engine/unit_state.h"

namespace tessera {
namespace {

void DescribeUnits(const JobRegions& regions, const ControlPage& page, std::string* text) {
  for (size_t u = 0; u < regions.layout().units.size(); ++u) {
    absl::StrAppend(text, "  ", regions.layout().units[u].flat.unit_name(), ": ",
                    Name(static_cast<UnitState>(page.units[u].state.load())), ", reduced ",
                    page.units[u].reduced.load(), " times in this epoch\n");
  }
}

// The counters wrap around, and a trainer may have written anything into them.
void DescribeOps(const ControlPage& page, std::string* text) {
  const uint32_t consumed = page.consumed.load(), submitted = page.submitted.value.load();
  absl::StrAppend(text, "operations: ", submitted, " submitted, ", consumed, " consumed; at step ",
                  page.progress_step.load(), " position ", page.progress_sequence.load(), "\n");
  // A counter that a trainer spoiled gives a large difference. No more than the ring is listed.
  const uint32_t num_pending = std::min<uint32_t>(submitted - consumed, kRingOps);
  for (uint32_t i = 0; i < num_pending; ++i) {  // Those before are in the flight records.
    // Read while it may be written: a torn record is shown as it is.
    const Op& op = page.ring[(consumed + i) % kRingOps];
    absl::StrAppend(text, "  #", consumed + i, " pending ", OpName(op.kind), " unit ", op.unit,
                    " epoch ", op.epoch, "\n");
  }
}

std::string Describe(const JobRegions& regions, Rank rank) {
  const ControlPage& page = *regions.control(rank);
  const RankRecord& record = regions.group()->ranks[rank.value() - regions.local().first()];
  std::string text =
      absl::StrCat("rank ", rank.value(), ": epoch ", page.epoch.load(), ", committed step ",
                   page.committed_step.load(), ", applied step ", record.applied_step.load(),
                   ", decided step ", regions.group()->decided_step.load(), "\n");
  if (page.failed_epoch.load() != 0) {
    absl::StrAppend(&text, "last failure: epoch ", page.failed_epoch.load(), ": ",
                    PrintableUtf8(LoadText(page.failure_message, kMaxErrorBytes)), "\n");
  }
  DescribeUnits(regions, page, &text);
  DescribeOps(page, &text);
  return text;
}

v1::FlightRecord ToProto(const FlightRecord& record, const ModelLayout& layout) {
  v1::FlightRecord proto;
  proto.set_number(record.number);
  proto.set_epoch(record.epoch);
  proto.set_step(record.step);
  proto.set_sequence(record.sequence);
  proto.set_op(OpName(record.kind));
  // ReadFlightRing has counted a record with another unit as invalid.
  if (record.unit >= 0) proto.set_unit(layout.units[record.unit].flat.unit_name());
  proto.set_bytes(record.bytes);
  proto.set_stream(record.stream == FlightStream::kPostBackward ? "post-backward" : "engine");
  proto.set_enqueued_steady_ns(record.enqueued_ns);
  proto.set_started_steady_ns(record.started_ns);
  proto.set_done_steady_ns(record.done_ns);
  return proto;
}

}  // namespace

v1::DumpRankResponse DumpRank(const JobRegions& regions, const std::string& job_id, Rank rank) {
  v1::DumpRankResponse dump;
  dump.set_job_id(job_id);
  dump.set_rank(static_cast<int32_t>(rank.value()));
  // From the trainer's page, as the text: what a person sees here may be what a trainer wrote.
  dump.set_epoch(regions.control(rank)->epoch.load());
  dump.set_fake_all_gather(regions.config().fake_all_gather);
  dump.set_fake_reduce_scatter(regions.config().fake_reduce_scatter);
  dump.set_failed_epoch(regions.control(rank)->failed_epoch.load());
  dump.set_text(Describe(regions, rank));
  const absl::StatusOr<FlightRecords> read =
      ReadFlightRing(regions.flight(rank), static_cast<int>(regions.layout().units.size()));
  if (read.ok()) {
    dump.set_torn_records(read->num_torn);
    dump.set_invalid_records(read->num_invalid);
    for (const FlightRecord& record : read->records) {
      *dump.add_records() = ToProto(record, regions.layout());
    }
  } else {
    dump.mutable_text()->append(absl::StrCat("no records: ", read.status().message(), "\n"));
  }
  // Both clocks at one moment, so that readers can convert the records' times.
  dump.set_now_steady_ns(MonotonicNanos());
  dump.set_now_unix_ns(absl::GetCurrentTimeNanos());
  return dump;
}

}  // namespace tessera
