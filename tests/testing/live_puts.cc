#include "tests/testing/live_puts.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <sstream>
#include <thread>

#include "base/status_matchers.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "checkpoint/safetensors/stored_tensors.h"
#include "client/cli/cli.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "nlohmann/json.hpp"

namespace tessera::testing_support {

CliResult RunTessera(const std::string& coordinator, std::vector<std::string> args) {
  if (!coordinator.empty()) args.push_back("--coordinator=" + coordinator);
  std::ostringstream out, err;
  CliResult result;
  result.exit_code = cli::RunCli(args, {&out, &err, false});
  result.out = out.str();
  result.err = err.str();
  return result;
}

StoredValues ReadStored(const std::string& path) {
  StoredValues values;
  const auto stored = StoredTensors::Open(path);
  EXPECT_OK(stored);
  if (!stored.ok()) return values;
  for (const auto& [key, entry] : (*stored)->entries()) {
    if (key.first == "trainer") continue;
    std::string bytes(entry.size_bytes, 0);
    EXPECT_OK((*stored)->Read(key, 0, entry.numel, bytes.data()));
    values[key.second] = {std::string(Name(*entry.dtype)), bytes};
  }
  return values;
}

float PutValue(const std::string& parameter, int64_t element) {
  uint32_t hash = 0;
  for (const char c : parameter) hash = hash * 31 + static_cast<unsigned char>(c);
  return std::cos(0.3f * static_cast<float>(element)) + static_cast<float>(hash % 1000) / 7.0f;
}

void WritePutFile(const std::string& path, const std::vector<TensorSpec>& tensors,
                  const std::map<std::string, std::string>& as) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, PlaceTensors(tensors, {}));
  ASSERT_OK(ModelFile::Create(path, header));
  ASSERT_OK_AND_ASSIGN(ModelFile file, ModelFile::Open(path, header));
  for (const TensorSpec& tensor : tensors) {
    const std::string& name = as.count(tensor.name) > 0 ? as.at(tensor.name) : tensor.name;
    const int64_t count = *Numel(tensor);
    std::vector<float> values(count);
    for (int64_t i = 0; i < count; ++i) values[i] = PutValue(name, i);
    std::string bytes(count * SizeBytes(tensor.dtype), 0);
    if (tensor.dtype == DType::kFp64) {
      const std::vector<double> wide(values.begin(), values.end());
      memcpy(bytes.data(), wide.data(), bytes.size());
    } else if (IsHalf(tensor.dtype)) {
      std::vector<uint16_t> halves(count);
      host::CastFp32ToHalf(tensor.dtype, values.data(), halves.data(), count);
      memcpy(bytes.data(), halves.data(), bytes.size());
    } else {
      memcpy(bytes.data(), values.data(), bytes.size());
    }
    ASSERT_OK(file.WriteBytes(tensor.name, bytes));
  }
  ASSERT_OK(file.Sync());
  ASSERT_OK(ModelFile::Publish(path));
}

LiveReading ReadLive(const std::string& coordinator, const std::string& job,
                     const std::string& path) {
  LiveReading reading;
  const CliResult result =
      RunTessera(coordinator, {"get", job, "--optimizer", "--json", "--out", path});
  reading.ok = result.exit_code == 0;
  reading.error = result.err;
  if (!reading.ok) return reading;
  const auto json = nlohmann::json::parse(result.out);
  reading.step = json["step"];
  reading.committed_step = json["committed_step"];
  reading.values = ReadStored(path);
  return reading;
}

PutOutcome PutWhileTraining(const std::string& coordinator, const std::string& job,
                            std::vector<std::string> args, const std::string& scratch_path,
                            const std::function<void()>& one_step) {
  PutOutcome outcome;
  const LiveReading before = ReadLive(coordinator, job, scratch_path);
  EXPECT_TRUE(before.ok) << before.error;
  args.insert(args.begin(), {"put", "--job", job});
  std::atomic<bool> ended{false};
  std::thread putter([&] {
    outcome.result = RunTessera(coordinator, args);
    ended.store(true);
  });
  bool is_last = false;
  while (!outcome.applied && !is_last) {
    is_last = ended.load();
    one_step();
    const LiveReading now = ReadLive(coordinator, job, scratch_path);
    if (!now.ok) continue;  // An epoch ends.
    outcome.applied = now.committed_step - now.step > before.committed_step - before.step;
    if (outcome.applied) outcome.after = now;
  }
  putter.join();
  return outcome;
}

}  // namespace tessera::testing_support
