// Tells of each segment that a load sets, for tests, and keeps nothing.
#ifndef TESSERA_WORKER_EXECUTOR_LOAD_FAKE_STATE_WRITER_H_
#define TESSERA_WORKER_EXECUTOR_LOAD_FAKE_STATE_WRITER_H_

#include <functional>
#include <utility>

#include "gtest/gtest.h"
#include "worker/engine/state_files.h"

namespace tessera {

class FakeStateWriter final : public StateWriter {
 public:
  explicit FakeStateWriter(std::function<void(StateArray, const ShardSegment&)> told)
      : told_(std::move(told)) {}

  void Set(StateArray array, const ShardSegment& segment, int64_t, const ConstValues&) override {
    told_(array, segment);
  }
  void Clear(StateArray array, const ShardSegment& segment) override { told_(array, segment); }
  void Keep(StateArray, const ShardSegment&) override { ADD_FAILURE(); }

 private:
  const std::function<void(StateArray, const ShardSegment&)> told_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_LOAD_FAKE_STATE_WRITER_H_
