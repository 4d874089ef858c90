// What the ranks of the conformance tests send: the same on every rank. Pure; thread-safe.
#ifndef TESSERA_WORKER_COMM_COMMUNICATOR_CONFORMANCE_VALUES_H_
#define TESSERA_WORKER_COMM_COMMUNICATOR_CONFORMANCE_VALUES_H_

#include <cstdint>
#include <vector>

namespace tessera {

// A cheap generator: a conformance run draws millions of values.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint32_t operator()() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }

 private:
  uint64_t state_;
};

// Values of mixed magnitude, whose sums depend on the order in which they are added.
inline std::vector<float> Floats(int owner, int64_t count) {
  Draw draw(1000 + owner);
  std::vector<float> values(count);
  for (float& v : values) {
    const uint32_t bits = draw();
    v = (static_cast<float>(bits % 20001) - 10000.0f) * (bits % 3 == 0 ? 1e-4f : 0.037f);
  }
  return values;
}

inline std::vector<uint8_t> RandomBytes(int owner, int64_t count) {
  Draw draw(2000 + owner);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& b : bytes) b = static_cast<uint8_t>(draw());
  return bytes;
}

// What fp32 has no room for.
inline std::vector<double> Doubles(int owner, int64_t count) {
  std::vector<double> values;
  for (const float value : Floats(owner, count)) values.push_back(value * (1 + 1e-11));
  return values;
}

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_COMMUNICATOR_CONFORMANCE_VALUES_H_
