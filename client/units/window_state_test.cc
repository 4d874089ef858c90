#include "client/units/window_state.h"

#include "gtest/gtest.h"

namespace tessera {
namespace {

// A unit in all programs of up to `left` events, closed whenever it may be.
class AllPrograms {
 public:
  int num_programs() const { return num_programs_; }

  void Run(int left) {
    ++num_programs_;
    // Whatever runs reads.
    ASSERT_TRUE(open_ || (forwards_ == 0 && running_ == 0));
    if (left == 0) return;
    Try(left, !backward_, &AllPrograms::BeginForward);
    Try(left, backward_ && forwards_ < 2, &AllPrograms::Recompute);
    Try(left, forwards_ > 0, &AllPrograms::EndForward);
    Try(left, !backward_, &AllPrograms::BeginBackward);
    Try(left, nodes_ > running_, &AllPrograms::BeginNode);
    Try(left, running_ > 0, &AllPrograms::EndNode);
    Try(left, backward_ && running_ == 0, &AllPrograms::EndBackward);
  }

 private:
  void Try(int left, bool possible, void (AllPrograms::*event)()) {
    if (!possible || testing::Test::HasFatalFailure()) return;
    const AllPrograms before = *this;
    (this->*event)();
    Run(left - 1);
    const int num_programs = num_programs_;
    *this = before;
    num_programs_ = num_programs;
  }

  void Take(WindowEvent event) {
    const WindowTransition to = Transition(state_, event);
    state_ = to.next;
    if (to.action == WindowAction::kOpen) open_ = true;
    if (to.action == WindowAction::kMayCloseAfterForward ||
        to.action == WindowAction::kMayCloseAfterBackward) {
      open_ = false;
    }
  }

  void BeginForward() {
    Take(WindowEvent::kForwardBegins);
    ++forwards_;
  }
  void Recompute() {
    Take(WindowEvent::kRecomputeBegins);
    ++forwards_;
  }
  void EndForward() {
    if (--forwards_ == 0) Take(WindowEvent::kForwardEnds);
  }
  void BeginBackward() {
    backward_ = true;
    nodes_ = 2;
  }
  void BeginNode() {
    Take(WindowEvent::kNodeBegins);
    ++running_;
  }
  void EndNode() {
    --running_;
    if (--nodes_ == 0) Take(WindowEvent::kWorkEnds);
  }
  void EndBackward() {
    backward_ = false;
    nodes_ = 0;
    Take(WindowEvent::kBackwardEnds);
  }

  WindowState state_ = WindowState::kIdle;
  bool open_ = false, backward_ = false;
  int forwards_ = 0, nodes_ = 0, running_ = 0;
  int num_programs_ = 0;
};

TEST(WindowStateTest, UnitIsOpenWheneverOneOfItsForwardsOrNodesRuns) {
  AllPrograms programs;
  programs.Run(/*left=*/11);
  EXPECT_GT(programs.num_programs(), 10'000);
}

struct Row {
  WindowState state;
  WindowEvent event;
  WindowState next;
  WindowAction action;
};

TEST(WindowStateTest, UnitIsGivenBackByTheLastWhoReadsIt) {
  constexpr auto kIdle = WindowState::kIdle, kForward = WindowState::kForward,
                 kBackward = WindowState::kBackward, kBoth = WindowState::kBoth;
  const Row rows[] = {
      {kForward, WindowEvent::kForwardEnds, kIdle, WindowAction::kMayCloseAfterForward},
      {kBackward, WindowEvent::kWorkEnds, kIdle, WindowAction::kMayCloseAfterBackward},
      {kBackward, WindowEvent::kBackwardEnds, kIdle, WindowAction::kMayCloseAfterBackward},
      // Kept for a backward that does not come to it.
      {kIdle, WindowEvent::kBackwardEnds, kIdle, WindowAction::kMayCloseAfterBackward},
      // A backward inside of its forward, and a forward inside of its backward.
      {kForward, WindowEvent::kNodeBegins, kBoth, WindowAction::kOpen},
      {kForward, WindowEvent::kBackwardEnds, kForward, WindowAction::kNone},
      {kBoth, WindowEvent::kWorkEnds, kForward, WindowAction::kNone},
      {kBoth, WindowEvent::kBackwardEnds, kForward, WindowAction::kNone},
      {kBoth, WindowEvent::kForwardEnds, kBackward, WindowAction::kNone},
      {kIdle, WindowEvent::kRecomputeBegins, kBoth, WindowAction::kOpen},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(testing::Message()
                 << static_cast<int>(row.state) << ", " << static_cast<int>(row.event));
    const WindowTransition to = Transition(row.state, row.event);
    EXPECT_EQ(to.next, row.next);
    EXPECT_EQ(to.action, row.action);
  }
}

}  // namespace
}  // namespace tessera
