// Tables, frames and the live screen, without a server.
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "client/cli/job_view.h"
#include "client/cli/live_screen.h"
#include "client/cli/text_table.h"
#include "client/cli/top_view.h"

namespace tessera::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TextTableTest, NumbersAreSetToTheRightAndTextToTheLeft) {
  TextTable table({"name", "count"});
  table.AddRow({"a", "1"});
  table.AddRow({"longer", "1000000"});
  EXPECT_EQ(table.Render(" "),
            " name      count\n"
            " a             1\n"
            " longer  1000000\n");
}

TEST(TextTableTest, CharactersBeyondAsciiCountOnce) {
  TextTable table({"n", "x"});
  table.AddRow({"\xc3\xa4\xc3\xb6", "yes"});
  table.AddRow({"abc", "no"});
  EXPECT_EQ(table.Render(""),
            "n    x\n"
            "\xc3\xa4\xc3\xb6   yes\n"
            "abc  no\n");
}

TEST(PrintableTest, ControlCharactersOfBothRangesAreReplaced) {
  EXPECT_EQ(Printable("a\x1b[2Jb\nc\x7f"), "a?[2Jb?c?");
  EXPECT_EQ(Printable("a\xc2\x9b"
                      "2J"),
            "a?2J");  // CSI in one character.
  EXPECT_EQ(Printable("\xc3\xa4 \xe2\x82\xac"), "\xc3\xa4 \xe2\x82\xac");
  EXPECT_EQ(PrintableLines("a\tb\nc\r"), "a\tb\nc?");
}

TEST(JobViewTest, UnknownEnumeratorsOfANewerServerAreShown) {
  EXPECT_EQ(StateName(static_cast<v1::JobState>(77)), "UNKNOWN");
  EXPECT_EQ(StateName(v1::JOB_STATE_WAITING), "WAITING");
  EXPECT_EQ(StrategyName(v1::STRATEGY_SHARD_GRAD_OP), "SHARD_GRAD_OP");
}

TEST(JobViewTest, RankThatReportsButIsNotPlacedIsShown) {
  v1::Job job;
  (*job.mutable_ranks())[5].set_doing("shutting down");
  EXPECT_THAT(RanksTable(job), AllOf(HasSubstr("shutting down"), HasSubstr("     5  ?")));
}

TEST(JobViewTest, JobOfFakeCollectivesSaysSoWhereverItIsShown) {
  v1::ListJobsResponse jobs;
  v1::Job* job = jobs.add_jobs();
  EXPECT_THAT(JobHeadline(*job), Not(HasSubstr("fake")));
  EXPECT_THAT(JobsTable(jobs), Not(HasSubstr("fake")));
  job->mutable_config()->set_fake_reduce_scatter(true);
  EXPECT_THAT(JobHeadline(*job), HasSubstr("TRAINS NOTHING: fake reduce-scatter"));
  job->mutable_config()->set_fake_all_gather(true);
  const char both[] = "TRAINS NOTHING: fake all-gather, fake reduce-scatter";
  EXPECT_THAT(JobHeadline(*job), HasSubstr(both));
  EXPECT_THAT(JobsTable(jobs), HasSubstr(both));
  EXPECT_THAT(JobsJson(jobs), AllOf(HasSubstr("\"fake_all_gather\": true"),
                                    HasSubstr("\"fake_reduce_scatter\": true")));
}

TEST(JobViewTest, WorkersViewOfSuchAJobSaysSoToo) {
  v1::WorkerStatusResponse worker;
  v1::JobProgress* progress = worker.add_jobs();
  EXPECT_THAT(WorkerText(worker), Not(HasSubstr("fake")));
  EXPECT_THAT(WorkerJson(worker), HasSubstr("\"fake_all_gather\": false"));
  progress->set_fake_all_gather(true);
  EXPECT_THAT(WorkerText(worker), HasSubstr("ranks here, TRAINS NOTHING: fake all-gather\n"));
  EXPECT_THAT(WorkerJson(worker), AllOf(HasSubstr("\"fake_all_gather\": true"),
                                        HasSubstr("\"fake_reduce_scatter\": false")));
}

v1::ListJobsResponse JobAt(int64_t epoch, int64_t step) {
  v1::ListJobsResponse jobs;
  v1::Job* job = jobs.add_jobs();
  job->set_job_id("gpt");
  job->set_epoch(epoch);
  job->set_committed_step(step);
  return jobs;
}

TEST(TopViewTest, RateIsOfTheStepsSinceTheFrameBefore) {
  TopView view("host:1");
  const absl::Time start = absl::UnixEpoch();
  EXPECT_THAT(view.Frame(JobAt(1, 10), start), Not(HasSubstr("steps/s")));
  EXPECT_THAT(view.Frame(JobAt(1, 15), start + absl::Seconds(2)), HasSubstr(", 2.5 steps/s\n"));
  EXPECT_THAT(view.Frame(JobAt(1, 15), start + absl::Seconds(4)), HasSubstr(", 0.0 steps/s\n"));
}

TEST(TopViewTest, JobThatStartedAnewHasNoRate) {
  TopView view("host:1");
  const absl::Time start = absl::UnixEpoch();
  view.Frame(JobAt(4, 100), start);
  EXPECT_THAT(view.Frame(JobAt(1, 3), start + absl::Seconds(1)), Not(HasSubstr("steps/s")));
  view.Frame({}, start + absl::Seconds(2));
  EXPECT_THAT(view.Frame(JobAt(1, 9), start + absl::Seconds(3)), Not(HasSubstr("steps/s")));
}

TEST(CropFrameTest, LastLineCountsWhatIsMissing) {
  EXPECT_EQ(CropFrame("a\nb\nc\nd\n", 3), "a\nb\n... 2 more lines\n");
  EXPECT_EQ(CropFrame("a\nb\nc\n", 3), "a\nb\nc\n");
  EXPECT_EQ(CropFrame("a\nb\n", 0), "a\nb\n");
  EXPECT_EQ(CropFrame("a\nb\n", 1), "... 2 more lines\n");
}

TEST(RunLiveTest, EntersAndLeavesTheAlternateScreenAround) {
  std::ostringstream out;
  int num_waits = 0;
  EXPECT_OK(RunLive([] { return absl::StatusOr<std::string>("frame\n"); },
                    [&] { return ++num_waits < 3; }, &out));
  const std::string text = out.str();
  EXPECT_EQ(text.find("\x1b[?1049h"), 0);
  EXPECT_EQ(text.rfind("\x1b[?1049l"), text.size() - 8);
  EXPECT_EQ(num_waits, 3);
  size_t num_frames = 0;
  for (size_t at = text.find("\x1b[Hframe"); at != std::string::npos;
       at = text.find("\x1b[Hframe", at + 1)) {
    ++num_frames;
  }
  EXPECT_EQ(num_frames, 3);
}

TEST(RunLiveTest, ErrorOfTheFirstFrameEndsBeforeTheScreenIsTouched) {
  std::ostringstream out;
  EXPECT_THAT(RunLive([] { return absl::StatusOr<std::string>(absl::UnavailableError("gone")); },
                      [] { return true; }, &out),
              StatusIs(absl::StatusCode::kUnavailable, "gone"));
  EXPECT_EQ(out.str(), "");
}

TEST(RunLiveTest, LaterErrorIsShownAndTriedAgain) {
  std::ostringstream out;
  int num_frames = 0;
  const auto next_frame = [&]() -> absl::StatusOr<std::string> {
    if (++num_frames == 2) return absl::UnavailableError("gone");
    return absl::StrCat("frame ", num_frames, "\n");
  };
  EXPECT_OK(RunLive(
      next_frame, [&] { return num_frames < 3; }, &out));
  EXPECT_THAT(out.str(),
              AllOf(HasSubstr("UNAVAILABLE: gone\x1b[K\r\nframe 1"), HasSubstr("frame 3")));
}

TEST(RunLiveTest, OutputThatCannotBeWrittenEnds) {
  std::ostringstream out;
  const auto next_frame = [&]() -> absl::StatusOr<std::string> {
    out.setstate(std::ios::badbit);
    return "frame\n";
  };
  EXPECT_THAT(RunLive(
                  next_frame, [] { return true; }, &out),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot write")));
}

}  // namespace
}  // namespace tessera::cli
