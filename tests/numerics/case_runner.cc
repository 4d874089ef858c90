#include "tests/numerics/case_runner.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/numerics/reference_trainer.h"

namespace tessera::numerics {
namespace {

// Of a norm: a sum in double of another order, and its root.
constexpr double kNormTolerance = 1e-9;

float FromHalf(DType dtype, uint16_t bits) {
  if (dtype == DType::kBf16) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

class Runner {
 public:
  Runner(const RandomJob& job, uint64_t seed, Session* session, std::function<void()> between)
      : job_(job),
        seed_(seed),
        session_(session),
        between_(std::move(between)),
        reference_(job.model, job.config, job.ranks_by_worker),
        pending_(job.model.units.size()) {
    int number = 0;
    for (const UnitLayout& unit : session->layout().units) {
      first_.push_back(number);
      number += static_cast<int>(unit.flat.parameters().size());
    }
    first_.push_back(number);
  }

  absl::Status Run(int64_t num_steps) {
    RETURN_IF_ERROR(Initialize());
    for (number_ = 1; number_ <= num_steps; ++number_) {
      step_ = MakeStep(job_, seed_, number_);
      RETURN_IF_ERROR(Named(RunStep()));
      Dice dice(seed_ + 1, static_cast<uint64_t>(number_));
      if (dice.OneIn(15)) RETURN_IF_ERROR(Named(Write(&dice)));
    }
    return Named(CompareShards());
  }

  const ReferenceTrainer& reference() const { return reference_; }

 private:
  absl::Status Named(const absl::Status& status) const {
    return status.ok() ? status
                       : absl::Status(status.code(),
                                      absl::StrCat("seed ", seed_, ", step ", number_, ", rank ",
                                                   session_->rank(), ": ", status.message()));
  }
  void Between() const {
    if (between_) between_();
  }
  // Those of fp64 have bits that fp32 has no room for.
  std::vector<double> RandomValues(Dice dice, int parameter) {
    const bool fine = reference_.full_dtype(reference_.UnitOf(parameter)) == DType::kFp64;
    std::vector<double> values(reference_.values(parameter).size());
    for (double& value : values) {
      value = dice.Uniform();
      if (fine) value += std::ldexp(static_cast<double>(dice.Uniform()), -25);
    }
    return values;
  }
  static void Store(const std::vector<double>& from, Values to) {
    if (to.dtype() == DType::kFp64) {
      std::copy(from.begin(), from.end(), to.as<double>().begin());
    } else {
      std::copy(from.begin(), from.end(), to.as<float>().begin());
    }
  }

  absl::Status Initialize() {
    for (int p = 0; p < reference_.num_parameters(); ++p)
      reference_.values(p) = RandomValues(Dice(seed_ + 2, p), p);
    if (session_->initialized()) return absl::OkStatus();
    return session_->Initialize([this](int unit, int parameter, Values values) {
      Store(reference_.values(first_[unit] + parameter), values);
    });
  }

  bool FullPrecision(int unit) const { return step_.full_precision[unit] != 0; }
  DType ShownIn(int unit) const {
    return FullPrecision(unit) ? reference_.full_dtype(unit) : reference_.compute_dtype(unit);
  }
  // What the module sees of an element.
  double Seen(int parameter, size_t i) {
    return RoundTo(ShownIn(reference_.UnitOf(parameter)), reference_.values(parameter)[i]);
  }
  static double Load(DType dtype, const std::byte* from, size_t i) {
    if (dtype == DType::kFp64) return reinterpret_cast<const double*>(from)[i];
    if (dtype == DType::kFp32) return reinterpret_cast<const float*>(from)[i];
    return FromHalf(dtype, reinterpret_cast<const uint16_t*>(from)[i]);
  }

  absl::Status Open(int unit) {
    if (session_->unsharded(unit)) return absl::OkStatus();
    RETURN_IF_ERROR(
        session_->Unshard(unit, FullPrecision(unit) ? Precision::kFull : Precision::kCompute));
    for (int p = first_[unit]; p < first_[unit + 1]; ++p) {
      const int in_unit = p - first_[unit];
      const std::byte* shown = FullPrecision(unit) ? session_->full_parameter(unit, in_unit)
                                                   : session_->parameter(unit, in_unit);
      for (size_t i = 0; i < reference_.values(p).size(); ++i) {
        const double value = Load(ShownIn(unit), shown, i);
        if (value != Seen(p, i)) return Differs(p, i, value, Seen(p, i));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Differs(int parameter, size_t i, double value, double expected) const {
    return absl::InternalError(absl::StrCat(reference_.spec(parameter).name, "[", i, "] is ", value,
                                            ", the reference has ", expected));
  }

  std::vector<double> Gradient(int64_t batch, int rank, int parameter) {
    const bool fine = reference_.full_dtype(reference_.UnitOf(parameter)) == DType::kFp64;
    Dice dice(seed_ + 3, ((number_ * 8 + batch) * 16 + rank) * 64 + parameter);
    std::vector<double> gradient(reference_.values(parameter).size());
    for (size_t i = 0; i < gradient.size(); ++i) {
      const float random = dice.Uniform();
      gradient[i] = fine ? GradientOf<double>(Seen(parameter, i), random, step_.magnitude)
                         : GradientOf<float>(Seen(parameter, i), random, step_.magnitude);
    }
    const bool last = batch + 1 == static_cast<int64_t>(step_.micro_batches.size());
    if (last && rank == step_.bad_rank && parameter == step_.bad_parameter && !gradient.empty()) {
      gradient[gradient.size() / 2] = step_.bad_value;
      bad_ = true;
    }
    return gradient;
  }

  absl::Status AddGradients(int64_t batch, int unit) {
    for (int p = first_[unit]; p < first_[unit + 1]; ++p) {
      for (int rank = 0; rank < job_.config.world_size; ++rank) {
        if (step_.micro_batches[batch].gives[p][rank] == 0) continue;
        const std::vector<double> gradient = Gradient(batch, rank, p);
        pending_[unit] = true;
        reference_.AddGradient(rank, p, gradient, FullPrecision(unit));
        if (rank == session_->rank())
          RETURN_IF_ERROR(GiveGradient(unit, p - first_[unit], gradient));
      }
    }
    return absl::OkStatus();
  }

  absl::Status GiveGradient(int unit, int parameter, const std::vector<double>& gradient) {
    if (reference_.full_dtype(unit) == DType::kFp64)
      return session_->AddGradient(unit, parameter, gradient);
    return session_->AddGradient(unit, parameter,
                                 std::vector<float>(gradient.begin(), gradient.end()));
  }

  Strategy StrategyOf(int unit) const { return session_->layout().units[unit].strategy; }

  absl::Status RunBatch(int64_t batch) {
    const int num_units = session_->num_units();
    for (int unit = 0; unit < num_units; ++unit) {
      RETURN_IF_ERROR(Open(unit));
      Between();
      if (unit != 0 && ReshardsAfterForward(StrategyOf(unit)))
        RETURN_IF_ERROR(session_->Reshard(unit));
    }
    const bool last = batch + 1 == static_cast<int64_t>(step_.micro_batches.size());
    for (int unit = num_units - 1; unit >= 0; --unit) {
      RETURN_IF_ERROR(Open(unit));
      Between();
      RETURN_IF_ERROR(AddGradients(batch, unit));
      if (StrategyOf(unit) != Strategy::kNoShard) RETURN_IF_ERROR(session_->Reshard(unit));
      if (!step_.micro_batches[batch].reduces || !pending_[unit]) continue;
      reference_.Reduce(unit, FullPrecision(unit));
      pending_[unit] = false;
      if (!(last && step_.leaves_reduction)) RETURN_IF_ERROR(session_->Reduce(unit));
    }
    return absl::OkStatus();
  }

  absl::Status RunStep() {
    bad_ = false;
    for (size_t batch = 0; batch < step_.micro_batches.size(); ++batch)
      RETURN_IF_ERROR(RunBatch(static_cast<int64_t>(batch)));
    if (step_.drops) {
      RETURN_IF_ERROR(session_->DropGradients());
      reference_.DropGradients();
      bad_ = false;
    }
    Between();
    const StepOptions& options = step_.options[session_->rank()];
    const int64_t next = session_->next_step();
    const absl::StatusOr<StepResult> result = session_->Step(options);
    if (bad_) return CheckBadStep(result, options, next);
    RETURN_IF_ERROR(result.status());
    const double norm = reference_.Norm(options, step_.total_weight);
    if (std::fabs(result->gradient_norm - norm) > kNormTolerance * norm) {
      return absl::InternalError(
          absl::StrCat("the norm is ", result->gradient_norm, ", the reference has ", norm));
    }
    if (result->step != next || result->skipped)
      return absl::InternalError(absl::StrCat("step ", result->step, " instead of ", next));
    reference_.Step(options, step_.total_weight, result->gradient_norm);
    return absl::OkStatus();
  }

  absl::Status CheckBadStep(const absl::StatusOr<StepResult>& result, const StepOptions& options,
                            int64_t next) {
    reference_.DropGradients();
    const bool as_asked = options.skip_non_finite ? result.ok() && result->skipped
                                                  : absl::IsFailedPrecondition(result.status());
    if (as_asked && session_->next_step() == next) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("a gradient that is not finite gave ", result.status().ToString()));
  }

  absl::Status Write(Dice* dice) {
    std::vector<int> units;
    for (int unit = 0; unit < session_->num_units(); ++unit) {
      if (!dice->OneIn(2)) continue;
      units.push_back(unit);
      for (int p = first_[unit]; p < first_[unit + 1]; ++p) {
        reference_.values(p) = RandomValues(Dice(seed_ + 4, number_ * 64 + p), p);
      }
    }
    return session_->WriteParameters(units, [this](int unit, int p, Values values) {
      Store(reference_.values(first_[unit] + p), values);
    });
  }

  absl::Status CompareShards() {
    absl::Status status;
    for (int unit = 0; unit < session_->num_units(); ++unit) {
      RETURN_IF_ERROR(session_->ReadParameters(unit, [&](int p, ConstValues values) {
        const std::vector<double>& expected = reference_.values(first_[unit] + p);
        const auto* read = static_cast<const std::byte*>(values.data());
        for (size_t i = 0; i < values.size() && status.ok(); ++i) {
          const double value = Load(values.dtype(), read, i);
          if (value != expected[i]) status = Differs(first_[unit] + p, i, value, expected[i]);
        }
      }));
    }
    return status;
  }

  const RandomJob& job_;
  const uint64_t seed_;
  Session* const session_;
  const std::function<void()> between_;
  ReferenceTrainer reference_;
  std::vector<int> first_;     // By unit: its first parameter's number.
  std::vector<char> pending_;  // By unit: some rank has given it a gradient.
  int64_t number_ = 0;
  RandomStep step_;
  bool bad_ = false;
};

}  // namespace

absl::Status RunCases(const RandomJob& job, uint64_t seed, int64_t num_steps, Session* session,
                      const std::function<void()>& between, std::optional<ReferenceTrainer>* end) {
  Runner runner(job, seed, session, between);
  RETURN_IF_ERROR(runner.Run(num_steps));
  if (end != nullptr) end->emplace(runner.reference());
  return absl::OkStatus();
}

}  // namespace tessera::numerics
