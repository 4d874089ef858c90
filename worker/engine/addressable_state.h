// Versions of a rank's state for code that reads and writes single elements of them: files and puts.
//
//   InPlaceState   the state is in host memory: it is read and written where it is
//   ImageState     the state is on a GPU: by way of an image in host memory (state_image.h)
//
// Confined to the engine's thread.
#ifndef TESSERA_WORKER_ENGINE_ADDRESSABLE_STATE_H_
#define TESSERA_WORKER_ENGINE_ADDRESSABLE_STATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "layout/values.h"
#include "worker/device/rank_kernels.h"
#include "worker/engine/sharded_optimizer.h"
#include "worker/engine/state_image.h"

namespace tessera {

class AddressableState {
 public:
  virtual ~AddressableState() = default;

  // Memory for it. Errors: ResourceExhausted  the host has none left, and this rank's size_bytes()
  // are wanted; those of RankKernels::AllocateOnHost
  virtual absl::Status Reserve() = 0;
  virtual int64_t size_bytes() const = 0;  // How much memory Reserve takes.
  // Whether At() is a copy, to which training does not write.
  virtual bool is_copy() const = 0;

  // Then At() has version `step`, to be read. Errors: those of RankKernels::Finish
  virtual absl::Status Read(int64_t step) = 0;
  // Then At() has version `step`, to be written: `arrays` of it are as in the version before.
  virtual absl::Status BeginWrite(int64_t step, absl::Span<const StateArray> arrays) = 0;
  // Then At() has the job's first version, to be written: it is zero.
  virtual void BeginFirst() = 0;
  // As in the version before, of one segment.
  virtual void Keep(StateArray array, const ShardSegment& segment, int64_t step) = 0;
  // What was written is in version `step`.
  virtual absl::Status EndWrite(int64_t step) = 0;

  // Where the segment's elements of version `step` are.
  virtual Values At(StateArray array, const ShardSegment& segment, int64_t step) const = 0;
};

class InPlaceState final : public AddressableState {
 public:
  explicit InPlaceState(ShardedOptimizer* optimizer) : optimizer_(*optimizer) {}

  absl::Status Reserve() override { return absl::OkStatus(); }
  int64_t size_bytes() const override { return 0; }
  bool is_copy() const override { return false; }
  absl::Status Read(int64_t step) override { return absl::OkStatus(); }
  absl::Status BeginWrite(int64_t step, absl::Span<const StateArray> arrays) override;
  void BeginFirst() override { optimizer_.BeginInitial(); }
  void Keep(StateArray array, const ShardSegment& segment, int64_t step) override {
    optimizer_.CopyFromVersionBefore(array, segment, step);
  }
  absl::Status EndWrite(int64_t step) override { return absl::OkStatus(); }
  Values At(StateArray array, const ShardSegment& segment, int64_t step) const override {
    return optimizer_.Staged(array, segment, step);
  }

 private:
  ShardedOptimizer& optimizer_;
};

class ImageState final : public AddressableState {
 public:
  ImageState(StateImage* image, RankKernels* kernels) : image_(*image), kernels_(kernels) {}

  absl::Status Reserve() override { return image_.Reserve(kernels_); }
  int64_t size_bytes() const override { return image_.size_bytes(); }
  bool is_copy() const override { return true; }
  absl::Status Read(int64_t step) override { return image_.Pull(step % 2, kernels_); }
  absl::Status BeginWrite(int64_t step, absl::Span<const StateArray> arrays) override {
    return image_.Pull((step + 1) % 2, kernels_);
  }
  void BeginFirst() override { image_.Clear(); }
  void Keep(StateArray, const ShardSegment&, int64_t) override {}  // The image has it.
  absl::Status EndWrite(int64_t step) override { return image_.Push(step % 2, kernels_); }
  Values At(StateArray array, const ShardSegment& segment, int64_t step) const override {
    return image_.At(array, segment);
  }

 private:
  StateImage& image_;
  RankKernels* const kernels_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_ADDRESSABLE_STATE_H_
