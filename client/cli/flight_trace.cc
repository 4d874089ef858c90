#include "client/cli/flight_trace.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/fake_note.h"
#include "client/cli/flight_view.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

// absl::Duration saturates, whatever a worker sent.
double Micros(int64_t from_ns, int64_t to_ns) {
  return absl::ToDoubleMicroseconds(absl::Nanoseconds(to_ns) - absl::Nanoseconds(from_ns));
}

Json Metadata(const char* what, int rank, int track, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}};
}

// The latest time at which an operation that was not completed was over.
int64_t EndOf(const v1::FlightRecord& record, const v1::DumpRankResponse& dump) {
  if (record.done_steady_ns() != 0) return record.done_steady_ns();
  for (const v1::FlightRecord& later : dump.records()) {
    // Its epoch was over at the latest when the next one's first operation came.
    if (later.epoch() > record.epoch()) {
      return std::max(later.enqueued_steady_ns(), record.started_steady_ns());
    }
  }
  return std::max(dump.now_steady_ns(), record.started_steady_ns());
}

Json Event(const v1::FlightRecord& record, const v1::DumpRankResponse& dump, int track) {
  const std::string state = FlightState(record, dump);
  std::string name = record.op();
  if (!record.unit().empty()) absl::StrAppend(&name, " ", record.unit());
  if (state != "done") absl::StrAppend(&name, " (", state, ")");
  Json event = {{"name", name}, {"cat", record.op()}, {"pid", dump.rank()}, {"tid", track}};
  if (record.started_steady_ns() != 0) {
    event["ph"] = "X";
    event["ts"] = Micros(0, record.started_steady_ns());
    event["dur"] = Micros(record.started_steady_ns(), EndOf(record, dump));
  } else {
    event["ph"] = "i";
    event["s"] = "t";  // On its track alone.
    event["ts"] = Micros(0, record.enqueued_steady_ns());
  }
  event["args"] = {{"number", record.number()}, {"epoch", record.epoch()},
                   {"step", record.step()},     {"sequence", record.sequence()},
                   {"bytes", record.bytes()},   {"state", state}};
  if (record.started_steady_ns() != 0) {
    event["args"]["waited_us"] = Micros(record.enqueued_steady_ns(), record.started_steady_ns());
  }
  return event;
}

}  // namespace

std::string FlightTrace(const std::vector<v1::DumpRankResponse>& dumps) {
  Json events = Json::array();
  for (const v1::DumpRankResponse& dump : dumps) {
    const std::string note = FakeNote(dump.fake_all_gather(), dump.fake_reduce_scatter());
    events.push_back(
        Metadata("process_name", dump.rank(), 0, absl::StrCat("rank ", dump.rank(), note)));
    std::map<std::string, int> tracks;
    for (const v1::FlightRecord& record : dump.records()) {
      const auto [track, is_new] =
          tracks.insert({record.stream(), static_cast<int>(tracks.size()) + 1});
      if (is_new) {
        events.push_back(Metadata("thread_name", dump.rank(), track->second, record.stream()));
      }
      events.push_back(Event(record, dump, track->second));
    }
  }
  const Json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return trace.dump(-1, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::cli
