// tessera-demo-trainer: one rank's training code, or the same training without Tessera.
//
// Prints one JSON object a line on standard output: what a driver needs to show and to compare.
#include <sys/resource.h>

#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "base/command_line.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "checkpoint/safetensors/model_file.h"
#include "client/session/session_setup.h"
#include "nlohmann/json.hpp"
#include "tessera/torch/sharded_model.h"
#include "tests/demo/gpt.h"
#include "tests/demo/schedule.h"
#include "tests/demo/text.h"

namespace tessera::demo {
namespace {

struct Flags {
  std::string mode = "sharded";
  int64_t compute_samples = 0;
  std::string coordinator, worker, job, text, save_path;
  int rank = 0, world_size = 4, batch = 4;
  int64_t steps = 60;
  uint64_t seed = 1;
  double learning_rate = 1e-3, max_norm = 1.0, weight_decay = 0.1;
  bool replace = false;
  GptConfig model;
};

void Emit(const nlohmann::json& line) {
  puts(line.dump().c_str());
  fflush(stdout);
}

class Batches {
 public:
  Batches(const Flags& flags, std::string text) : flags_(flags), text_(std::move(text)) {}
  torch::Tensor At(int64_t step, int rank) const {
    const int64_t length = flags_.model.context + 1;
    torch::Tensor windows = torch::empty({flags_.batch, length}, torch::kInt64);
    int64_t* out = windows.data_ptr<int64_t>();
    for (int64_t start :
         WindowStarts(flags_.seed, step, rank, flags_.batch, length, text_.size())) {
      for (int64_t i = 0; i < length; ++i) *out++ = static_cast<uint8_t>(text_[start + i]);
    }
    return windows;
  }

 private:
  const Flags& flags_;
  const std::string text_;
};

double Seconds(absl::Duration d) { return absl::ToDoubleSeconds(d); }

// Forward and backward of this rank's batches, without gradients going anywhere. All ranks begin a
// sample together, as they do a step: with more ranks than cores some wait for others. It is of a
// few steps, so that how they come together counts little.
absl::Status MeasureComputeOnly(Session* session, const Flags& flags, const Batches& batches) {
  constexpr int kSteps = 4;
  auto model = MakeGpt(flags.model, flags.seed);
  SessionSetup ranks(session);
  const char mine = 0;
  std::vector<char> all(flags.world_size);
  for (int64_t sample = 0; sample <= flags.compute_samples; ++sample) {
    RETURN_IF_ERROR(ranks.AllGather(absl::MakeConstSpan(&mine, 1), all.data()));
    const absl::Time began = absl::Now();
    for (int64_t step = 1; step <= kSteps; ++step) {
      NextByteLoss(*model, batches.At(step, flags.rank)).backward();
      for (torch::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
    }
    if (sample == 0) continue;  // It warms up.
    Emit({{"event", "computed"},
          {"sample", sample},
          {"seconds", Seconds(absl::Now() - began) / kSteps}});
  }
  return absl::OkStatus();
}

absl::Status RunSharded(const Flags& flags, const Batches& batches) {
  SessionOptions options;
  options.coordinator_address = flags.coordinator;
  options.worker_address = flags.worker;
  options.job_id = flags.job;
  options.rank = flags.rank;
  options.wait_if_attached = flags.replace;
  options.config.world_size = flags.world_size;
  options.config.max_gradient_norm = flags.max_norm;
  options.config.groups[0].learning_rate = flags.learning_rate;
  options.config.groups[0].weight_decay = flags.weight_decay;
  const absl::Time began = absl::Now();
  auto model = MakeGpt(flags.model, flags.seed);
  ASSIGN_OR_RETURN(std::unique_ptr<ShardedModel> sharded, ShardedModel::Attach(model, options));
  int64_t parameters = 0;
  for (const UnitLayout& unit : sharded->session().layout().units)
    parameters += unit.flat.unpadded_numel();
  Emit({{"event", "attached"},
        {"next_step", sharded->next_step()},
        {"seconds", Seconds(absl::Now() - began)},
        {"units", sharded->session().num_units()},
        {"parameters", parameters}});
  while (sharded->next_step() <= flags.steps) {
    const absl::Time step_began = absl::Now();
    const int64_t step = sharded->next_step();
    double loss_value = 0, norm = 0;
    int tries = 0;
    RETURN_IF_ERROR(sharded->RunStep([&]() -> absl::Status {
      ++tries;
      torch::Tensor loss = NextByteLoss(*model, batches.At(sharded->next_step(), flags.rank));
      loss.backward();
      loss_value = loss.item<double>();
      // Said before the step, so that it is known even if this process ends right after it.
      Emit({{"event", "loss"}, {"step", sharded->next_step()}, {"loss", loss_value}});
      ASSIGN_OR_RETURN(const StepResult result, sharded->StepWithResult(LearningRateScale(
                                                    sharded->next_step(), flags.steps)));
      norm = result.gradient_norm;
      return absl::OkStatus();
    }));
    Emit({{"event", "step"},
          {"step", step},
          {"loss", loss_value},
          {"norm", norm},
          {"redone", tries - 1},
          {"seconds", Seconds(absl::Now() - step_began)}});
  }
  if (flags.save_path.empty()) return absl::OkStatus();
  const absl::Time save_began = absl::Now();
  RETURN_IF_ERROR(sharded->session().Save(flags.save_path));
  Emit({{"event", "saved"}, {"seconds", Seconds(absl::Now() - save_began)}});
  return MeasureComputeOnly(&sharded->session(), flags, batches);
}

// Writes the module's parameters as the sharded run does.
absl::Status SavePlain(Gpt& model, const std::string& path) {
  std::vector<TensorSpec> specs;
  std::map<const void*, bool> seen;
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& item : model.named_parameters()) {
    if (!seen.emplace(item.value().unsafeGetTensorImpl(), true).second) continue;
    specs.push_back({item.key(), item.value().sizes().vec(), DType::kFp32});
    tensors[item.key()] = item.value().detach().contiguous();
  }
  ASSIGN_OR_RETURN(const SafetensorsHeader header, PlaceTensors(specs, {{"format", "pt"}}));
  RETURN_IF_ERROR(ModelFile::Create(path, header));
  ASSIGN_OR_RETURN(ModelFile file, ModelFile::Open(path, header));
  for (const auto& [name, tensor] : tensors) {
    RETURN_IF_ERROR(
        file.WriteSlice(name, 0, absl::MakeConstSpan(tensor.data_ptr<float>(), tensor.numel())));
  }
  RETURN_IF_ERROR(file.Sync());
  return ModelFile::Publish(path);
}

// The same global batches in one process with libtorch's own optimizer: the reference.
absl::Status RunUnsharded(const Flags& flags, const Batches& batches) {
  auto model = MakeGpt(flags.model, flags.seed);
  std::vector<torch::Tensor> parameters;
  std::set<const void*> seen;  // libtorch lists a tied parameter under each of its names.
  for (const torch::Tensor& parameter : model->parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  }
  torch::optim::AdamW optimizer(
      parameters, torch::optim::AdamWOptions(flags.learning_rate).weight_decay(flags.weight_decay));
  for (int64_t step = 1; step <= flags.steps; ++step) {
    const absl::Time began = absl::Now();
    optimizer.zero_grad();
    std::vector<double> losses;
    for (int rank = 0; rank < flags.world_size; ++rank) {
      torch::Tensor loss = NextByteLoss(*model, batches.At(step, rank));
      loss.backward();
      losses.push_back(loss.item<double>());
    }
    for (const torch::Tensor& parameter : parameters)
      parameter.mutable_grad().div_(flags.world_size);
    const double norm = torch::nn::utils::clip_grad_norm_(parameters, flags.max_norm);
    for (auto& group : optimizer.param_groups()) {
      static_cast<torch::optim::AdamWOptions&>(group.options())
          .lr(flags.learning_rate * LearningRateScale(step, flags.steps));
    }
    optimizer.step();
    Emit({{"event", "step"},
          {"step", step},
          {"losses", losses},
          {"norm", norm},
          {"seconds", Seconds(absl::Now() - began)}});
  }
  return SavePlain(*model, flags.save_path);
}

absl::Status Run(const Flags& flags) {
  ASSIGN_OR_RETURN(std::string text, ReadText(flags.text, 16 * (flags.model.context + 1)));
  const Batches batches(flags, std::move(text));
  if (flags.mode == "sharded") return RunSharded(flags, batches);
  if (flags.mode == "unsharded") return RunUnsharded(flags, batches);
  return absl::InvalidArgumentError("--mode is neither sharded nor unsharded");
}

}  // namespace
}  // namespace tessera::demo

int main(int argc, char** argv) {
  tessera::demo::Flags flags;
  int threads = 1;
  CLI::App app("Trains a byte-level GPT as one rank of a Tessera job, or without Tessera.",
               "tessera-demo-trainer");
  app.add_option("--mode", flags.mode, "sharded or unsharded");
  app.add_option("--coordinator", flags.coordinator);
  app.add_option("--worker", flags.worker);
  app.add_option("--job", flags.job);
  app.add_option("--rank", flags.rank);
  app.add_option("--world-size", flags.world_size);
  app.add_option("--text", flags.text, "a text file or a folder of such")->required();
  app.add_option("--steps", flags.steps);
  app.add_option("--seed", flags.seed);
  app.add_option("--batch", flags.batch, "windows a rank and step");
  app.add_option("--compute-samples", flags.compute_samples,
                 "of forward and backward alone, measured once the model is saved");
  app.add_option("--context", flags.model.context, "bytes a window");
  app.add_option("--width", flags.model.width);
  app.add_option("--blocks", flags.model.blocks);
  app.add_option("--threads", threads);
  app.add_option("--save", flags.save_path, "where the final model goes");
  app.add_flag("--replace", flags.replace, "wait for the rank's former trainer to be gone");
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  torch::set_num_threads(threads);
  tessera::SetLogContext("trainer " + std::to_string(flags.rank));
  const absl::Status status = tessera::demo::Run(flags);
  if (status.ok()) return 0;
  fprintf(stderr, "trainer %d: %s\n", flags.rank, status.ToString().c_str());
  return 1;
}
