#include "client/cli/flight_view.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/fake_note.h"
#include "client/cli/json_text.h"
#include "client/cli/text_table.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Span(int64_t from_ns, int64_t to_ns) {
  return absl::FormatDuration(
      absl::Trunc(absl::Nanoseconds(to_ns) - absl::Nanoseconds(from_ns), absl::Microseconds(1)));
}

bool IsOver(const v1::FlightRecord& record, const v1::DumpRankResponse& dump) {
  return record.epoch() < dump.epoch() || record.epoch() <= dump.failed_epoch();
}

// The time from one event to the next. Of what is under way, until now, with a "+".
std::string Phase(int64_t from_ns, int64_t to_ns, const v1::FlightRecord& record,
                  const v1::DumpRankResponse& dump) {
  if (from_ns == 0) return "-";
  if (to_ns != 0) return Span(from_ns, to_ns);
  return IsOver(record, dump) ? "-" : absl::StrCat(Span(from_ns, dump.now_steady_ns()), "+");
}

std::vector<std::string> Row(const v1::FlightRecord& record, const v1::DumpRankResponse& dump) {
  return {absl::StrCat(record.number()),
          absl::StrCat(record.epoch()),
          absl::StrCat(record.step()),
          absl::StrCat(record.sequence()),
          Printable(record.op()),
          record.unit().empty() ? "-" : Printable(record.unit()),
          absl::StrCat(record.bytes()),
          Printable(record.stream()),
          absl::FormatTime("%H:%M:%E6S", WallTime(record.enqueued_steady_ns(), dump),
                           absl::UTCTimeZone()),
          Phase(record.enqueued_steady_ns(), record.started_steady_ns(), record, dump),
          Phase(record.started_steady_ns(), record.done_steady_ns(), record, dump),
          FlightState(record, dump)};
}

Json TimeOrNull(int64_t nanos) { return nanos == 0 ? Json(nullptr) : Json(nanos); }

Json RecordJson(const v1::FlightRecord& record, const v1::DumpRankResponse& dump) {
  return {{"number", record.number()},
          {"epoch", record.epoch()},
          {"step", record.step()},
          {"sequence", record.sequence()},
          {"op", record.op()},
          {"unit", record.unit().empty() ? Json(nullptr) : Json(record.unit())},
          {"bytes", record.bytes()},
          {"stream", record.stream()},
          {"state", FlightState(record, dump)},
          {"enqueued_steady_ns", record.enqueued_steady_ns()},
          {"started_steady_ns", TimeOrNull(record.started_steady_ns())},
          {"done_steady_ns", TimeOrNull(record.done_steady_ns())}};
}

}  // namespace

std::string FlightState(const v1::FlightRecord& record, const v1::DumpRankResponse& dump) {
  if (record.done_steady_ns() != 0) return "done";
  return absl::StrCat(IsOver(record, dump) ? "cut off, " : "",
                      record.started_steady_ns() != 0 ? "running" : "waiting");
}

absl::Time WallTime(int64_t steady_ns, const v1::DumpRankResponse& dump) {
  // A steady clock means nothing in another process, but its differences do.
  return absl::FromUnixNanos(dump.now_unix_ns()) -
         (absl::Nanoseconds(dump.now_steady_ns()) - absl::Nanoseconds(steady_ns));
}

std::string FlightText(const v1::DumpRankResponse& dump, int last) {
  TextTable table({"#", "epoch", "step", "seq", "op", "unit", "bytes", "stream", "at (UTC)",
                   "waited", "ran", "state"});
  const int first = std::max(0, dump.records_size() - last);
  int num_shown = 0;
  for (int i = 0; i < dump.records_size(); ++i) {
    const v1::FlightRecord& record = dump.records(i);
    // An operation that hangs may be much older than the newest ones.
    const bool in_flight = record.done_steady_ns() == 0 && !IsOver(record, dump);
    if (i < first && !in_flight) continue;
    table.AddRow(Row(record, dump));
    ++num_shown;
  }
  std::string text =
      absl::StrCat("rank ", dump.rank(), " of job ", Printable(dump.job_id()), ": epoch ",
                   dump.epoch(), ", ", num_shown, " of ", dump.records_size(), " operations",
                   FakeNote(dump.fake_all_gather(), dump.fake_reduce_scatter()), "\n");
  if (num_shown > 0) absl::StrAppend(&text, table.Render("  "));
  if (dump.torn_records() + dump.invalid_records() > 0) {
    absl::StrAppend(&text, "  left out: ", dump.torn_records(), " torn and ",
                    dump.invalid_records(), " invalid records\n");
  }
  absl::StrAppend(&text, PrintableLines(dump.text()));
  if (!absl::EndsWith(text, "\n")) text += "\n";
  return text;
}

std::string FlightJson(const std::vector<v1::DumpRankResponse>& dumps) {
  Json ranks = Json::array();
  for (const v1::DumpRankResponse& dump : dumps) {
    Json records = Json::array();
    for (const v1::FlightRecord& record : dump.records()) {
      records.push_back(RecordJson(record, dump));
    }
    ranks.push_back({{"job_id", dump.job_id()},
                     {"rank", dump.rank()},
                     {"epoch", dump.epoch()},
                     {"failed_epoch", dump.failed_epoch()},
                     {"fake_all_gather", dump.fake_all_gather()},
                     {"fake_reduce_scatter", dump.fake_reduce_scatter()},
                     {"now_steady_ns", dump.now_steady_ns()},
                     {"now_unix_ns", dump.now_unix_ns()},
                     {"torn_records", dump.torn_records()},
                     {"invalid_records", dump.invalid_records()},
                     {"records", std::move(records)},
                     {"text", dump.text()}});
  }
  const Json all = {{"ranks", std::move(ranks)}};
  return AsciiJsonText(all);
}

}  // namespace tessera::cli
