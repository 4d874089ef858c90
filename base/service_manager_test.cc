#include "base/service_manager.h"

#include <stdlib.h>
#include <unistd.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/notify_listener.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kNow = absl::ZeroDuration();

class ServiceManagerTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    ASSERT_OK_AND_ASSIGN(listener_, NotifyListener::Start(folder_ + "/notify", absl::Seconds(60)));
  }
  void TearDown() override {
    listener_.reset();
    unlink((folder_ + "/notify").c_str());
    rmdir(folder_.c_str());
  }

  std::string folder_ = "/tmp/tessera-notify-XXXXXX";
  std::unique_ptr<NotifyListener> listener_;
};

TEST_F(ServiceManagerTest, IsToldWhatTheDaemonSaysAndChildrenKnowNothingOfIt) {
  ASSERT_OK_AND_ASSIGN(const auto manager, ServiceManager::FromEnvironment());
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})
    EXPECT_EQ(getenv(name), nullptr) << name;
  manager->Ready();
  EXPECT_EQ(listener_->Next(), "READY=1");
  manager->Stopping();
  EXPECT_EQ(listener_->Next(), "STOPPING=1");
}

// The test says when the daemon's work makes progress.
class WatchTest : public ServiceManagerTest {
 protected:
  std::function<bool()> Progress() {
    return [this] {
      absl::MutexLock lock(&mu_);
      ++asked_;
      const auto answered = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return answers_ >= asked_; };
      mu_.Await(absl::Condition(&answered));
      return yes_;
    };
  }
  void Answer(bool yes) {
    absl::MutexLock lock(&mu_);
    yes_ = yes;
    answers_ = asked_;
  }
  void AnswerAll() {
    absl::MutexLock lock(&mu_);
    answers_ = std::numeric_limits<int>::max();
  }
  void AwaitQuestion(int number) {
    absl::MutexLock lock(&mu_);
    const auto asked = [this, number]()
                           ABSL_SHARED_LOCKS_REQUIRED(mu_) { return asked_ == number; };
    mu_.Await(absl::Condition(&asked));
  }

  absl::Mutex mu_;
  int asked_ ABSL_GUARDED_BY(mu_) = 0, answers_ ABSL_GUARDED_BY(mu_) = 0;
  bool yes_ ABSL_GUARDED_BY(mu_) = false;
};

TEST_F(WatchTest, EachYesIsPassedOnAndNothingElse) {
  setenv("WATCHDOG_USEC", "2000", 1);
  ASSERT_OK_AND_ASSIGN(const auto manager, ServiceManager::FromEnvironment());
  ASSERT_OK(manager->Watch(Progress()));
  AwaitQuestion(1);
  EXPECT_EQ(listener_->Next(kNow), "") << "nobody has answered";
  Answer(true);
  EXPECT_EQ(listener_->Next(), "WATCHDOG=1");
  AwaitQuestion(2);
  Answer(false);
  AwaitQuestion(3);
  EXPECT_EQ(listener_->Next(kNow), "") << "the answer was no";
  Answer(true);
  EXPECT_EQ(listener_->Next(), "WATCHDOG=1");
  AnswerAll();
}

TEST_F(WatchTest, IsOfTheProcessThatIsNamedAndOfNoOther) {
  setenv("WATCHDOG_PID", absl::StrCat(getppid()).c_str(), 1);
  ASSERT_OK_AND_ASSIGN(const auto manager, ServiceManager::FromEnvironment());
  ASSERT_OK(manager->Watch([] {
    ADD_FAILURE() << "nobody watches this process";
    return true;
  }));
  manager->Ready();
  EXPECT_EQ(listener_->Next(), "READY=1");
}

TEST_F(ServiceManagerTest, AbstractNameIsOne) {
  setenv("NOTIFY_SOCKET", "@tessera-nobody-listens-here", 1);
  ASSERT_OK_AND_ASSIGN(const auto manager, ServiceManager::FromEnvironment());
  manager->Ready();  // Logged, and no more.
}

TEST_F(ServiceManagerTest, WhatIsNotUnderstoodIsNamed) {
  const auto refused = [](const char* name, const std::string& value, const char* says) {
    setenv(name, value.c_str(), 1);
    EXPECT_THAT(ServiceManager::FromEnvironment(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(says)));
  };
  refused("NOTIFY_SOCKET", "vsock:2:1", "$NOTIFY_SOCKET 'vsock:2:1': is not a path");
  refused("NOTIFY_SOCKET", "/" + std::string(200, 'x'), "$NOTIFY_SOCKET");
  refused("WATCHDOG_USEC", "soon", "$WATCHDOG_USEC 'soon': is not a number");
  refused("WATCHDOG_USEC", "-1", "$WATCHDOG_USEC '-1'");
}

TEST(NoServiceManagerTest, NobodyIsToldAndNothingFails) {
  ASSERT_OK_AND_ASSIGN(const auto manager, ServiceManager::FromEnvironment());
  manager->Ready();
  ASSERT_OK(manager->Watch([] { return true; }));
  manager->Stopping();
}

}  // namespace
}  // namespace tessera
