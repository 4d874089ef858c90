// One rank of a job that the dashboard shows: trains the demo's model (tests/testing/byte_gpt.h) and
// reports its loss and how many bytes it has seen. While --hold-file exists, it stands still before
// its next step. When --fail-file exists, its step fails with what is in the file, and it ends.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "tessera/session.h"
#include "tests/demo/text.h"
#include "tests/testing/byte_gpt.h"
#include "tests/testing/byte_gpt_training.h"

namespace tessera::testing_support {
namespace {

constexpr int kBatch = 2;

struct Flags {
  SessionOptions session;
  int64_t steps = 1;
  std::string hold_file, fail_file;
  std::string root_unit = "root";
};

ModelSpec ModelOf(const ByteGptConfig& config, const Flags& flags) {
  ModelSpec model = ByteGptModel(config);
  model.units[0].name = flags.root_unit;
  return model;
}

ByteGptUnit Window(Session* session, const ModelSpec& model, int unit) {
  ByteGptUnit values;
  const std::vector<TensorSpec>& parameters = model.units[unit].parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    int64_t count = 1;
    for (const int64_t size : parameters[i].shape) count *= size;
    const auto* from =
        reinterpret_cast<const float*>(session->parameter(unit, static_cast<int>(i)));
    values.emplace_back(from, from + count);
  }
  return values;
}

absl::Status Reduce(Session* session, int unit, const ByteGptUnit& gradient) {
  for (size_t i = 0; i < gradient.size(); ++i)
    RETURN_IF_ERROR(session->AddGradient(unit, static_cast<int>(i), gradient[i]));
  return session->Reduce(unit);
}

absl::Status Step(Session* session, const ByteGptConfig& model, const std::string& text,
                  double* loss) {
  std::vector<uint8_t> windows;
  for (const int64_t start :
       demo::WindowStarts(/*seed=*/1, session->next_step(), session->rank(), kBatch,
                          model.context + 1, static_cast<int64_t>(text.size()))) {
    windows.insert(windows.end(), text.begin() + start, text.begin() + start + model.context + 1);
  }
  ByteGptPass pass(model, windows);
  const ModelSpec spec = ByteGptModel(model);
  RETURN_IF_ERROR(session->Unshard(0));
  const ByteGptUnit root = Window(session, spec, 0);
  pass.Embed(root);
  for (int block = 0; block < model.blocks; ++block) {
    RETURN_IF_ERROR(session->Unshard(1 + block));
    pass.ForwardBlock(block, Window(session, spec, 1 + block));
    RETURN_IF_ERROR(session->Reshard(1 + block));
  }
  *loss = pass.Loss(root);
  for (int block = static_cast<int>(model.blocks); block-- > 0;) {
    RETURN_IF_ERROR(session->Unshard(1 + block));
    const ByteGptUnit gradient = pass.BackwardBlock(block, Window(session, spec, 1 + block));
    RETURN_IF_ERROR(session->Reshard(1 + block));
    RETURN_IF_ERROR(Reduce(session, 1 + block, gradient));
  }
  RETURN_IF_ERROR(Reduce(session, 0, pass.Finish()));
  return session->Step().status();
}

absl::Status FailureIn(const std::string& path) {
  std::ifstream file(path);
  if (!file.is_open()) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string(std::istreambuf_iterator<char>(file), {}));
}

absl::Status Train(const Flags& flags, const ByteGptConfig& model) {
  ASSIGN_OR_RETURN(const auto session, Session::Open(flags.session));
  const std::string text = WordsOf(/*seed=*/1, 1 << 16);
  if (!session->initialized()) {
    const auto values = ByteGptInitialValues(model, /*seed=*/1);
    const absl::Status status = session->Initialize([&](int unit, int parameter, Values to) {
      const Floats& from = values[unit][parameter];
      std::copy(from.begin(), from.end(), to.as<float>().begin());
    });
    if (!status.ok()) return status;
  }
  while (session->next_step() <= flags.steps) {
    // Polled: the test makes and removes it.
    while (access(flags.hold_file.c_str(), F_OK) == 0) absl::SleepFor(absl::Milliseconds(10));
    double loss = 0.0;
    RETURN_IF_ERROR(session->RunStep([&]() -> absl::Status {
      RETURN_IF_ERROR(FailureIn(flags.fail_file));
      return Step(session.get(), model, text, &loss);
    }));
    const double bytes = static_cast<double>(session->next_step() - 1) * kBatch * model.context;
    RETURN_IF_ERROR(session->Report({{"loss", loss}, {"bytes", bytes}}));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace tessera::testing_support

int main(int argc, char** argv) {
  using namespace tessera::testing_support;  // NOLINT(build/namespaces)
  Flags flags;
  ByteGptConfig model;
  CLI::App app;
  app.add_option("--coordinator", flags.session.coordinator_address)->required();
  app.add_option("--worker", flags.session.worker_address)->required();
  app.add_option("--job", flags.session.job_id)->required();
  app.add_option("--rank", flags.session.rank)->required();
  app.add_option("--world-size", flags.session.config.world_size)->required();
  app.add_option("--steps", flags.steps)->required();
  app.add_option("--hold-file", flags.hold_file);
  app.add_option("--fail-file", flags.fail_file);
  app.add_option("--root-unit", flags.root_unit);
  app.add_option("--blocks", model.blocks);
  app.add_option("--width", model.width);
  CLI11_PARSE(app, argc, argv);
  flags.session.model = ModelOf(model, flags);
  flags.session.config.max_gradient_norm = 1.0;
  flags.session.config.groups[0].learning_rate = 2e-3;
  const absl::Status status = Train(flags, model);
  if (status.ok()) return 0;
  fprintf(stderr, "rank %d: %s\n", flags.session.rank, status.ToString().c_str());
  return 1;
}
