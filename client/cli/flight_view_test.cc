// Flight records as text, JSON and trace events, without a server.
#include "client/cli/flight_view.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/cli/flight_trace.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr int64_t kMilli = 1000000;

void AddRecord(v1::DumpRankResponse* dump, int64_t epoch, const std::string& op,
               const std::string& unit, int64_t enqueued_ms, int64_t started_ms, int64_t done_ms) {
  v1::FlightRecord* record = dump->add_records();
  record->set_number(dump->records_size() - 1);
  record->set_epoch(epoch);
  record->set_step(7);
  record->set_sequence(dump->records_size() + 3);
  record->set_op(op);
  record->set_unit(unit);
  record->set_bytes(op == "reduce" ? 4096 : 0);
  record->set_stream(op == "reduce" ? "post-backward" : "engine");
  record->set_enqueued_steady_ns(enqueued_ms * kMilli);
  record->set_started_steady_ns(started_ms * kMilli);
  record->set_done_steady_ns(done_ms * kMilli);
}

// Epoch 1 ended within a step; in epoch 2 a reduction runs and another one waits for it.
v1::DumpRankResponse SomeDump() {
  v1::DumpRankResponse dump;
  dump.set_job_id("gpt");
  dump.set_rank(1);
  dump.set_epoch(2);
  dump.set_now_steady_ns(100 * kMilli);
  dump.set_now_unix_ns(absl::ToUnixNanos(
      absl::FromCivil(absl::CivilSecond(2024, 5, 6, 7, 8, 9), absl::UTCTimeZone())));
  AddRecord(&dump, 1, "step", "", 10, 12, 0);
  AddRecord(&dump, 2, "unshard", "root", 50, 51, 53);
  AddRecord(&dump, 2, "reduce", "blocks.1", 60, 61, 0);
  AddRecord(&dump, 2, "reduce", "blocks.0", 70, 0, 0);
  dump.set_text("root: unsharded");
  return dump;
}

TEST(FlightTextTest, ShowsWhatIsDoneWhatRunsAndWhatWaits) {
  EXPECT_EQ(FlightText(SomeDump(), 20),
            "rank 1 of job gpt: epoch 2, 4 of 4 operations\n"
            "  #  epoch  step  seq  op       unit      bytes  stream       "
            "         at (UTC)  waited    ran  state\n"
            "  0      1     7    4  step     -             0  engine       "
            "  07:08:08.910000     2ms      -  cut off, running\n"
            "  1      2     7    5  unshard  root          0  engine       "
            "  07:08:08.950000     1ms    2ms  done\n"
            "  2      2     7    6  reduce   blocks.1   4096  post-backward"
            "  07:08:08.960000     1ms  39ms+  running\n"
            "  3      2     7    7  reduce   blocks.0   4096  post-backward"
            "  07:08:08.970000   30ms+      -  waiting\n"
            "root: unsharded\n");
}

TEST(FlightTextTest, OlderOperationsInFlightAreShownBesideTheNewest) {
  v1::DumpRankResponse dump = SomeDump();
  for (int i = 0; i < 5; ++i) AddRecord(&dump, 2, "unshard", absl::StrCat("u", i), 80, 81, 82);
  const std::string text = FlightText(dump, 1);
  EXPECT_THAT(text, AllOf(HasSubstr("3 of 9 operations"), HasSubstr("blocks.1"),
                          HasSubstr("blocks.0"), HasSubstr("u4"), Not(HasSubstr("u3"))));
}

TEST(FlightTextTest, EpochThatFailedIsOver) {
  v1::DumpRankResponse dump = SomeDump();
  dump.set_failed_epoch(2);
  EXPECT_EQ(FlightState(dump.records(1), dump), "done");
  EXPECT_EQ(FlightState(dump.records(2), dump), "cut off, running");
  EXPECT_EQ(FlightState(dump.records(3), dump), "cut off, waiting");
}

TEST(FlightTextTest, SkippedRecordsAreSaidAndAnEmptyDumpIsNoTable) {
  v1::DumpRankResponse dump;
  dump.set_job_id("gpt");
  dump.set_torn_records(1);
  dump.set_invalid_records(2);
  EXPECT_EQ(FlightText(dump, 20),
            "rank 0 of job gpt: epoch 0, 0 of 0 operations\n"
            "  left out: 1 torn and 2 invalid records\n");
}

TEST(FlightTextTest, RecordsOfFakeCollectivesSaySoInTextJsonAndTrace) {
  v1::DumpRankResponse dump = SomeDump();
  for (const std::string& shown : {FlightText(dump, 20), FlightTrace({dump})}) {
    EXPECT_THAT(shown, Not(HasSubstr("fake")));
  }
  dump.set_fake_reduce_scatter(true);
  for (const std::string& shown : {FlightText(dump, 20), FlightTrace({dump})}) {
    EXPECT_THAT(shown, HasSubstr(", TRAINS NOTHING: fake reduce-scatter"));
  }
  const Json rank = Json::parse(FlightJson({dump}), nullptr, false)["ranks"][0];
  EXPECT_EQ(rank["fake_reduce_scatter"], true);
  EXPECT_EQ(rank["fake_all_gather"], false);
}

TEST(FlightTextTest, BytesOfAWorkerDoNotReachTheTerminalAndHarmNothing) {
  v1::DumpRankResponse dump = SomeDump();
  dump.set_job_id("\x1b[2J");
  dump.mutable_records(0)->set_unit("\x1b]0;title\x07");
  dump.mutable_records(1)->set_enqueued_steady_ns(INT64_MIN);
  dump.mutable_records(2)->set_started_steady_ns(INT64_MAX);
  dump.set_now_steady_ns(INT64_MIN);
  dump.set_now_unix_ns(INT64_MAX);
  EXPECT_EQ(FlightText(dump, 20).find_first_of("\x1b\x07"), std::string::npos);
  dump.mutable_records(0)->set_unit("a\xff");  // Not UTF-8: only an embedding program could.
  EXPECT_FALSE(Json::parse(FlightJson({dump}), nullptr, false).is_discarded());
  EXPECT_FALSE(Json::parse(FlightTrace({dump}), nullptr, false).is_discarded());
}

TEST(FlightJsonTest, HasEveryRecordAndNullForWhatHasNotHappened) {
  const Json json = Json::parse(FlightJson({SomeDump(), SomeDump()}), nullptr, false);
  ASSERT_EQ(json["ranks"].size(), 2);
  const Json& rank = json["ranks"][0];
  EXPECT_EQ(rank["rank"], 1);
  EXPECT_EQ(rank["now_steady_ns"], 100 * kMilli);
  ASSERT_EQ(rank["records"].size(), 4);
  EXPECT_EQ(rank["records"][1]["done_steady_ns"], 53 * kMilli);
  EXPECT_EQ(rank["records"][1]["state"], "done");
  EXPECT_EQ(rank["records"][2]["done_steady_ns"], nullptr);
  EXPECT_EQ(rank["records"][3]["started_steady_ns"], nullptr);
  EXPECT_EQ(rank["records"][0]["unit"], nullptr);
}

TEST(FlightTraceTest, ProcessARankTrackAStreamSliceAnOperation) {
  const Json trace = Json::parse(FlightTrace({SomeDump()}), nullptr, false);
  std::vector<std::string> slices;
  int engine_track = -1, stream_track = -1;
  for (const Json& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 1);
    if (event["ph"] == "M" && event["args"]["name"] == "engine") engine_track = event["tid"];
    if (event["ph"] == "M" && event["args"]["name"] == "post-backward") stream_track = event["tid"];
    if (event["ph"] == "M") continue;
    const int track = event["tid"];
    EXPECT_EQ(track, event["cat"] == "reduce" ? stream_track : engine_track);
    slices.push_back(absl::StrCat(event["ph"].get<std::string>(), " ",
                                  event["name"].get<std::string>(), " ", event["ts"].get<double>(),
                                  " ", event.value("dur", 0.0)));
  }
  EXPECT_NE(engine_track, stream_track);
  EXPECT_THAT(slices, testing::ElementsAre("X step (cut off, running) 12000 38000",
                                           "X unshard root 51000 2000",
                                           "X reduce blocks.1 (running) 61000 39000",
                                           "i reduce blocks.0 (waiting) 70000 0"));
}

}  // namespace
}  // namespace tessera::cli
