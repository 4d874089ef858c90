#include "shm/wait_word.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(30);

struct SharedWords {
  std::atomic<uint32_t> plain{0};
  WaitWord counted;
  std::atomic<uint32_t> abort{0};
  uint64_t data = 0;
};

// A page that a forked child shares.
class SharedPage {
 public:
  SharedPage() {
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    words_ = new (page) SharedWords();
  }
  ~SharedPage() { munmap(words_, 4096); }
  SharedWords* operator->() { return words_; }

 private:
  SharedWords* words_;
};

auto Equals(uint32_t wanted) {
  return [wanted](uint32_t value) { return value == wanted; };
}

TEST(WaitUntilTest, ReturnsAtOnceWhenThePredicateHolds) {
  std::atomic<uint32_t> word{3};
  EXPECT_OK(WaitUntil(word, Equals(3), AbortFlag(), absl::InfinitePast()));
}

TEST(WaitUntilTest, TimesOutAndNotEarly) {
  SharedPage page;
  const absl::Time start = absl::Now();
  EXPECT_THAT(WaitUntil(page->plain, Equals(1), AbortFlag(), start + kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::_));
  EXPECT_GE(absl::Now() - start, kShort - absl::Milliseconds(1));
  EXPECT_THAT(WaitUntil(&page->counted, Equals(1), AbortFlag(), absl::Now() + kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::_));
  EXPECT_EQ(0u, page->counted.sleepers.load());
}

TEST(WaitUntilTest, RaisedFlagEndsAWaitUnlessThePredicateHolds) {
  std::atomic<uint32_t> word{0};
  std::atomic<uint32_t> abort{5};
  EXPECT_THAT(WaitUntil(word, Equals(1), AbortFlag(&abort, 5), absl::Now() + kLong),
              StatusIs(absl::StatusCode::kAborted, testing::_));
  EXPECT_OK(WaitUntil(word, Equals(0), AbortFlag(&abort, 5), absl::Now() + kLong));
  EXPECT_THAT(WaitUntil(word, Equals(1), AbortFlag(&abort, 6), absl::Now() + kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::_));
}

TEST(WaitUntilTest, FlagRaisedDuringTheWaitEndsIt) {
  std::atomic<uint32_t> word{0};
  std::atomic<uint32_t> abort{0};
  std::thread raiser([&] {
    abort.store(1);
    WakeAll(word);
  });
  EXPECT_THAT(WaitUntil(word, Equals(1), AbortFlag(&abort), absl::Now() + kLong),
              StatusIs(absl::StatusCode::kAborted, testing::_));
  raiser.join();
}

TEST(WaitUntilTest, IntermediateValuesDoNotEndAWait) {
  WaitWord word;
  std::thread writer([&] {
    for (uint32_t i = 1; i <= 1000; ++i) Publish(&word, i);
  });
  EXPECT_OK(WaitUntil(&word, Equals(1000), AbortFlag(), absl::Now() + kLong));
  writer.join();
}

TEST(BumpTest, NoBumpOfSeveralWritersIsLost) {
  SharedPage page;
  constexpr uint32_t kBumps = 20000;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 3; ++writer) {
    writers.emplace_back([&] {
      for (uint32_t i = 0; i < kBumps; ++i) Bump(&page->counted);
    });
  }
  uint32_t seen = 0;
  while (seen != 3 * kBumps) {
    const absl::Time deadline = absl::Now() + kLong;
    WaitForChange(&page->counted, seen, deadline);
    ASSERT_LT(absl::Now(), deadline) << "asleep at " << seen;
    seen = page->counted.value.load();
  }
  for (std::thread& writer : writers) writer.join();
}

// Two processes hand a counter to and fro; each must see what the other wrote before Publish.
template <typename Word>
void PingPong(Word* word_of(SharedPage*), const std::atomic<uint32_t>* value_of(SharedPage*),
              WaitPolicy policy) {
  constexpr uint32_t kTurns = 2000;
  SharedPage page;
  const auto wait_for = [&](uint32_t turn) {
    Word* word = word_of(&page);
    if constexpr (std::is_same_v<Word, WaitWord>) {
      return WaitUntil(word, Equals(turn), AbortFlag(), absl::Now() + kLong, policy);
    } else {
      return WaitUntil(*word, Equals(turn), AbortFlag(), absl::Now() + kLong, policy);
    }
  };
  const auto play = [&](uint32_t first) {
    for (uint32_t turn = first; turn < kTurns; turn += 2) {
      if (!wait_for(turn).ok() || page->data != turn) return false;
      page->data = turn + 1;
      Publish(word_of(&page), turn + 1);
    }
    return true;
  };
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(play(1) ? 0 : 1);
  EXPECT_TRUE(play(0));
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(kTurns, value_of(&page)->load());
}

TEST(PublishTest, ProcessesPingPongOnPlainWords) {
  for (WaitPolicy policy : {WaitPolicy{0, 0}, WaitPolicy{0, 50}, WaitPolicy::ForParties(2)}) {
    PingPong<std::atomic<uint32_t>>(
        +[](SharedPage* p) { return &(*p)->plain; },
        +[](SharedPage* p) -> const std::atomic<uint32_t>* { return &(*p)->plain; }, policy);
  }
}

TEST(PublishTest, ProcessesPingPongOnCountedWords) {
  for (WaitPolicy policy : {WaitPolicy{0, 0}, WaitPolicy{0, 50}, WaitPolicy::ForParties(2)}) {
    PingPong<WaitWord>(
        +[](SharedPage* p) { return &(*p)->counted; },
        +[](SharedPage* p) -> const std::atomic<uint32_t>* { return &(*p)->counted.value; },
        policy);
  }
}

TEST(PublishTest, KilledSleeperLosesNoLaterWakeUp) {
  SharedPage page;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (void)WaitUntil(&page->counted, Equals(99), AbortFlag(), absl::Now() + kLong);
    _exit(0);
  }
  while (page->counted.sleepers.load() == 0) std::this_thread::yield();
  kill(child, SIGKILL);
  ASSERT_EQ(child, waitpid(child, nullptr, 0));
  EXPECT_EQ(1u, page->counted.sleepers.load());
  std::thread publisher([&] { Publish(&page->counted, 1); });
  EXPECT_OK(WaitUntil(&page->counted, Equals(1), AbortFlag(), absl::Now() + kLong));
  publisher.join();
}

TEST(WaitPolicyTest, SpinsOnlyWhenThePartiesFitOnTheCores) {
  EXPECT_GT(WaitPolicy::ForParties(1).spins, 0);
  EXPECT_EQ(0, WaitPolicy::ForParties(1 << 20).spins);
}

}  // namespace
}  // namespace tessera
