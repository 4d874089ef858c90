#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "absl/synchronization/mutex.h"
#include "base/bytes_text.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/machine_memory.h"
#include "base/no_more_threads.h"
#include "base/retry.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "base/utf8.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(RetryTest, DelayGrowsToItsBoundAndNeverPastIt) {
  RetryOptions options;
  options.jitter = 0;
  EXPECT_EQ(RetryDelay(options, 0, 0.5), absl::Milliseconds(20));
  EXPECT_EQ(RetryDelay(options, 3, 0.5), absl::Milliseconds(160));
  EXPECT_EQ(RetryDelay(options, 1000, 0.5), absl::Seconds(1));
}

TEST(RetryTest, JitterStaysWithinItsFraction) {
  const RetryOptions options;
  EXPECT_EQ(RetryDelay(options, 0, 0.0), absl::Milliseconds(16));
  EXPECT_LT(RetryDelay(options, 0, 0.999), absl::Milliseconds(24));
}

TEST(FaultPointTest, FailsAtTheHitThatWasArmedAndOnlyThere) {
  ArmFaultPoint("p", {FaultAction::kFail, 2, absl::DataLossError("armed")});
  EXPECT_OK(FaultPoint("p"));
  EXPECT_OK(FaultPoint("q"));
  EXPECT_THAT(FaultPoint("p"), StatusIs(absl::StatusCode::kDataLoss, "armed"));
  EXPECT_OK(FaultPoint("p"));
  DisarmAllFaultPoints();
}

TEST(FaultPointTest, KillEndsTheProcess) {
  EXPECT_EXIT(
      {
        (void)ArmFaultPointsFromFlag("p=kill@1");
        (void)FaultPoint("p");
      },
      testing::KilledBySignal(SIGKILL), "");
}

TEST(FaultPointTest, StopStopsTheProcessUntilItIsContinued) {
  const pid_t pid = fork();
  if (pid == 0) {
    const bool armed = ArmFaultPointsFromFlag("p=stop@2").ok();
    _exit(armed && FaultPoint("p").ok() && FaultPoint("p").ok() ? 7 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, WUNTRACED), pid);
  EXPECT_TRUE(WIFSTOPPED(status));
  ASSERT_EQ(kill(pid, SIGCONT), 0);
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

TEST(FaultPointTest, DelaysAreThoseOfTheSeedWhateverThePointIsCalled) {
  const auto hits_that_sleep = [](uint64_t seed, absl::string_view name) {
    ArmDelays(seed, absl::Microseconds(10));
    std::vector<int> slept;
    for (int hit = 0; hit < 200; ++hit) {
      const int64_t before = NumDelays();
      EXPECT_OK(FaultPoint(name));
      if (NumDelays() > before) slept.push_back(hit);
    }
    DisarmAllFaultPoints();
    return slept;
  };
  const std::vector<int> once = hits_that_sleep(7, "a");
  EXPECT_GT(once.size(), 10);
  EXPECT_LT(once.size(), 50);
  EXPECT_EQ(hits_that_sleep(7, "b"), once);
  EXPECT_NE(hits_that_sleep(8, "a"), once);
  const int64_t before = NumDelays();
  for (int hit = 0; hit < 200; ++hit) EXPECT_OK(FaultPoint("a"));
  EXPECT_EQ(NumDelays(), before) << "disarmed";
}

TEST(FaultPointTest, MalformedFlagNamesTheItem) {
  EXPECT_THAT(ArmFaultPointsFromFlag("*=kill@1"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("*=kill@1")));
  EXPECT_THAT(ArmFaultPointsFromFlag("p=explode@1"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("p=explode@1")));
  EXPECT_THAT(ArmFaultPointsFromFlag("p=kill@x"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hit number")));
}

TEST(UniqueFdTest, ClosesWhatItOwns) {
  const int raw = open("/dev/null", O_RDONLY);
  ASSERT_GE(raw, 0);
  { UniqueFd fd(raw); }
  EXPECT_EQ(fcntl(raw, F_GETFD), -1);
}

TEST(ErrnoStatusTest, NamesTheThingAndTheCause) {
  EXPECT_THAT(ErrnoStatus(ENOSPC, "write journal"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("write journal: No space")));
}

TEST(AnnotateTest, KeepsCodeAndPayload) {
  absl::Status status = absl::AbortedError("why");
  status.SetPayload("type", absl::Cord("detail"));
  const absl::Status annotated = Annotate(status, "rank 3");
  EXPECT_THAT(annotated, StatusIs(absl::StatusCode::kAborted, "rank 3: why"));
  EXPECT_EQ(annotated.GetPayload("type"), absl::Cord("detail"));
}

TEST(SimulatedClockTest, WaitEndsWhenTimeIsAdvancedToTheDeadline) {
  SimulatedClock clock(absl::UnixEpoch());
  clock.AdvanceTime(absl::Seconds(2));
  absl::Mutex mu;
  absl::MutexLock lock(&mu);
  bool never = false;
  EXPECT_FALSE(
      clock.AwaitWithDeadline(&mu, absl::Condition(&never), absl::UnixEpoch() + absl::Seconds(1)));
}

TEST(LogTest, UnknownLevelIsRefusedByName) {
  EXPECT_THAT(SetLogLevel("loud"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("loud")));
}

TEST(StartThreadTest, MachineWithoutMoreThreadsIsAnErrorAndNotTheEnd) {
  UniqueFd held(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int fd = held.get();
  {
    const NoMoreThreads limit;
    EXPECT_THAT(StartThread("an executor", [held = std::move(held)] {}),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("for an executor")));
  }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "what the body held is given back";
  bool ran = false;
  auto thread = StartThread("an executor", [&] { ran = true; });
  ASSERT_OK(thread);
  thread->join();
  EXPECT_TRUE(ran);
}

TEST(Utf8Test, WhatIsNoCharacterIsEscapedAndTheRestStays) {
  const struct {
    std::string text, printable;
  } kCases[] = {
      {"", ""},
      {"a\tb\nc", "a\tb\nc"},
      {"\u00e9\u20ac\U0001f600", "\u00e9\u20ac\U0001f600"},
      {"\xff", "\\xff"},
      {"a\x80z", "a\\x80z"},
      {"\x1b[2J", "\\x1b[2J"},
      {"\x7f", "\\x7f"},
      {std::string("\0", 1), "\\x00"},
      {"\xc2\x9b"
       "2J\u00a0",
       "\\xc2\\x9b2J\u00a0"},  // Some terminals' escape.
      {"a\u2028b\u2029\u2027", "a\\xe2\\x80\\xa8b\\xe2\\x80\\xa9\u2027"},  // Ends of lines.
      {"\u202e\u2069\u2065", "\\xe2\\x80\\xae\\xe2\\x81\\xa9\u2065"},      // Directions.
      {"\xe2\x82", "\\xe2\\x82"},                                          // Cut.
      {"\xc0\xaf", "\\xc0\\xaf"},                                          // Overlong.
      {"\xe0\x80\xaf", "\\xe0\\x80\\xaf"},                                 // Overlong.
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},                                 // A surrogate.
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},                        // Past U+10FFFF.
  };
  for (const auto& c : kCases) EXPECT_EQ(PrintableUtf8(c.text), c.printable);
}

TEST(Utf8Test, WhatHasAByteOutsideOfCharactersIsNotUtf8) {
  for (const char* text : {"", "a\n\x1b", "\u00e9\u20ac\U0001f600\u202e"})
    EXPECT_TRUE(IsUtf8(text)) << text;
  for (const char* text : {"\xff", "a\x80z", "\xe2\x82", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80"})
    EXPECT_FALSE(IsUtf8(text)) << PrintableUtf8(text);
}

TEST(Utf8Test, PrefixCutsNoCharacterInTwo) {
  const std::string text = "a\u20acb";  // 1 + 3 + 1 bytes.
  EXPECT_EQ(Utf8Prefix(text, 0), "");
  EXPECT_EQ(Utf8Prefix(text, 1), "a");
  EXPECT_EQ(Utf8Prefix(text, 2), "a");
  EXPECT_EQ(Utf8Prefix(text, 3), "a");
  EXPECT_EQ(Utf8Prefix(text, 4), "a\u20ac");
  EXPECT_EQ(Utf8Prefix(text, 5), text);
  EXPECT_EQ(Utf8Prefix("\x80\x80\x80\x80\x80\x80", 5).size(), 5) << "no characters at all";
}

TEST(LogTest, TextFromOthersIsOneLineWithoutControlCharacters) {
  testing::internal::CaptureStderr();
  SetLogContext("test");
  TESSERA_LOG(ERROR, "job {}: {}", "toy",
              "a\n2026-01-01T00:00:00 I forged] all is well\x1b[2J\xff\ttab");
  spdlog::default_logger()->flush();
  const std::string line = testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      line,
      HasSubstr("job toy: a\\n2026-01-01T00:00:00 I forged] all is well\\x1b[2J\\xff\ttab\n"));
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
}

TEST(MachineMemoryTest, MachineHasMemory) {
  EXPECT_GT(MachineMemoryBytes(), int64_t{64} << 20);
  EXPECT_LT(MachineMemoryBytes(), int64_t{1} << 60);
  EXPECT_GT(AvailableMemoryBytes(), int64_t{1} << 20);
  EXPECT_LE(AvailableMemoryBytes(), MachineMemoryBytes());
}

TEST(BytesTextTest, BytesAreToldInTheLargestUnit) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(int64_t{7} << 38), "1.8 TiB");
}

}  // namespace
}  // namespace tessera
