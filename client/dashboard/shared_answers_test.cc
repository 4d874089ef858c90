#include "client/dashboard/shared_answers.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "base/status_matchers.h"

namespace tessera::dashboard {
namespace {

HttpReply Reply(int number) { return {200, "text/plain", absl::StrCat(number)}; }

TEST(SharedAnswersTest, CallersOfOneKeyShareTheAnswerThatOneOfThemMakes) {
  SharedAnswers answers({absl::Hours(1), absl::Hours(1)});
  std::atomic<int> num_made = 0;
  absl::Notification begun, go_on;
  const auto make = [&] {
    begun.Notify();  // A second one would crash the test.
    go_on.WaitForNotification();
    return Reply(++num_made);
  };
  std::vector<std::string> got(8);
  std::vector<std::thread> callers;
  callers.emplace_back([&] { got[0] = answers.Get("jobs", make).body; });
  begun.WaitForNotification();
  for (int i = 1; i < 8; ++i) {
    callers.emplace_back([&, i] { got[i] = answers.Get("jobs", make).body; });
  }
  EXPECT_EQ(answers.Get("workers", [] { return Reply(7); }).body, "7") << "another key waits not";
  go_on.Notify();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(got, std::vector<std::string>(8, "1"));
  EXPECT_EQ(answers.Get("jobs", make).body, "1") << "it is kept";
}

TEST(SharedAnswersTest, AnswerThatIsOldIsMadeAgain) {
  SharedAnswers answers({absl::ZeroDuration(), absl::Hours(1)});
  int num_made = 0;
  const auto make = [&] { return Reply(++num_made); };
  EXPECT_EQ(answers.Get("jobs", make).body, "1");
  // It is kept for as long as it took, which is less than this loop may take.
  while (answers.Get("jobs", make).body == "1") std::this_thread::yield();
  EXPECT_GE(num_made, 2);
}

TEST(SharedAnswersTest, WaitForAnAnswerOfAnotherCallHasADeadline) {
  SharedAnswers answers({absl::Hours(1), absl::Milliseconds(1)});
  absl::Notification begun, go_on;
  std::thread first([&] {
    answers.Get("jobs", [&] {
      begun.Notify();
      go_on.WaitForNotification();
      return Reply(1);
    });
  });
  begun.WaitForNotification();
  EXPECT_EQ(answers.Get("jobs", [] { return Reply(2); }).status, 504);
  go_on.Notify();
  first.join();
  EXPECT_EQ(answers.Get("jobs", [] { return Reply(3); }).body, "1");
}

TEST(SharedAnswersTest, KeepsABoundedNumberOfAnswers) {
  SharedAnswers::Options options;
  options.kept = absl::Hours(1);
  options.max_answers = 2;
  SharedAnswers answers(options);
  int num_made = 0;
  const auto make = [&] { return Reply(++num_made); };
  for (const char* key : {"a", "b", "c", "d"}) answers.Get(key, make);
  EXPECT_EQ(num_made, 4);
  int num_kept = 0;
  for (const char* key : {"d", "c", "b", "a"}) {
    const int before = num_made;
    answers.Get(key, make);
    num_kept += num_made == before;
  }
  EXPECT_LE(num_kept, 3);
  EXPECT_GE(num_kept, 1);
}

}  // namespace
}  // namespace tessera::dashboard
