#include "client/session/window_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

std::atomic<int> interrupts{0};
int Interrupt(int argument) {
  interrupts += argument;
  return 0;
}

// Two units of a page each in shared memory, mapped for reading as trainers have it.
class WindowGuardTest : public testing::Test {
 protected:
  void SetUp() override {
    ModelSpec model;
    model.units.push_back({"root", {{"w", {4}}, {"b", {4}}}});
    model.units.push_back({"block", {{"block.w", {4}}}});
    ASSERT_OK_AND_ASSIGN(layout_, ModelLayout::Create(model, LayoutOptions(), 1));
    page_bytes_ = sysconf(_SC_PAGESIZE);
    fd_ = UniqueFd(memfd_create("parameters", MFD_CLOEXEC));
    ASSERT_EQ(ftruncate(fd_.get(), 2 * page_bytes_), 0);
    truth_ = Map(PROT_READ | PROT_WRITE);
    seen_ = Map(PROT_READ);
    truth_[0] = 1.0f;
    guard_ = std::make_unique<WindowGuard>(
        &layout_,
        std::vector<WindowGuard::UnitPages>{{Page(0), page_bytes_, 4}, {Page(1), page_bytes_, 4}});
    interrupts = 0;
    WindowGuard::OnOutsideUse(Interrupt, 1);
  }
  void TearDown() override {
    WindowGuard::OnOutsideUse(nullptr, 0);
    guard_.reset();
    munmap(truth_, 2 * page_bytes_);
    munmap(const_cast<float*>(seen_), 2 * page_bytes_);
  }

  float* Map(int protection) {
    return static_cast<float*>(
        mmap(nullptr, 2 * page_bytes_, protection, MAP_SHARED, fd_.get(), 0));
  }
  std::byte* Page(int page) {
    return reinterpret_cast<std::byte*>(const_cast<float*>(seen_)) + page * page_bytes_;
  }
  volatile float& At(int element) { return const_cast<float*>(seen_)[element]; }

  ModelLayout layout_;
  int64_t page_bytes_ = 0;
  UniqueFd fd_;
  float* truth_ = nullptr;
  const float* seen_ = nullptr;
  std::unique_ptr<WindowGuard> guard_;
};

TEST_F(WindowGuardTest, ReadOutsideItsWindowIsToldOnceAndThePagesCloseAgain) {
  EXPECT_EQ(At(0), 1.0f);
  EXPECT_EQ(interrupts, 1);
  EXPECT_THAT(WindowGuard::TakeOutsideUse(), HasSubstr("'w' of unit 'root' was used"));
  EXPECT_EQ(WindowGuard::TakeOutsideUse(), "");
  EXPECT_EQ(At(0), 1.0f);
  EXPECT_EQ(interrupts, 2) << "it was closed again";
  (void)WindowGuard::TakeOutsideUse();
}

TEST_F(WindowGuardTest, WhatIsWrittenIsLostInsideOfAWindowAndOutside) {
  ASSERT_OK(guard_->Open(0));
  At(0) = 7.0f;
  At(page_bytes_ / 4) = 8.0f;
  EXPECT_EQ(interrupts, 2);
  EXPECT_THAT(WindowGuard::TakeOutsideUse(), HasSubstr("only read parameters"));
  EXPECT_EQ(truth_[0], 1.0f);
  EXPECT_EQ(truth_[page_bytes_ / 4], 0.0f);
  EXPECT_EQ(At(0), 1.0f) << "the window is still open, and shows the truth";
  truth_[0] = 2.0f;
  EXPECT_EQ(At(0), 2.0f);
  EXPECT_EQ(interrupts, 2);
}

TEST_F(WindowGuardTest, WindowsThatOpenMeanwhileStayOpen) {
  EXPECT_EQ(At(0), 1.0f);
  ASSERT_OK(guard_->Open(0));
  (void)WindowGuard::TakeOutsideUse();
  EXPECT_EQ(At(0), 1.0f);
  EXPECT_EQ(interrupts, 1);
}

TEST_F(WindowGuardTest, HandlerIsInstalledAgainAfterAnother) {
  struct sigaction other = {}, before = {};
  other.sa_handler = SIG_DFL;
  sigaction(SIGSEGV, &other, &before);
  WindowGuard::InstallHandler();
  EXPECT_EQ(At(0), 1.0f);
  EXPECT_EQ(interrupts, 1);
  (void)WindowGuard::TakeOutsideUse();
}

}  // namespace
}  // namespace tessera
