// scaler.h - GradScaler: keeps f16 gradients inside the range of f16.
//
//   scaler.scale(loss).backward();
//   scaler.unscale_(sgd);                       // only to clip, or to look at gradients
//   clip_grad_norm_(params, 1.0);
//   const bool stepped = scaler.step(sgd);      // skipped if a gradient is infinite or NaN
//   scaler.update();
//   if (stepped) schedule.step();
//
// Gradients of a few 1e-8 are 0 in f16, so the loss is multiplied by a large factor before backward
// and the gradients are divided by it afterwards. The factor halves when gradients overflow, and
// doubles when they have not for long. bf16 has the range of f32 and needs none of this.
// Source: Micikevicius et al. 2018, arXiv:1710.03740.
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "tarn/core/tensor.h"
#include "tarn/core/tensor_dict.h"
#include "tarn/optim/clip.h"
#include "tarn/optim/optimizer.h"

namespace tarn::optim {

namespace detail {
struct Gradients;
}

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;  ///< steps without overflow before the scale grows
  int64_t hysteresis = 1;          ///< overflows (since it last grew) before the scale shrinks
  double min_scale = 0;            ///< the scale does not shrink below this
  bool enabled = true;             ///< else every call does the plain thing
};

/// PyTorch's torch.amp.GradScaler, which also says whether it stepped. One may serve several
/// optimizers: each is unscaled and stepped by itself, then one update(). Not thread-safe.
class GradScaler {
 public:
  explicit GradScaler(GradScalerOptions options = {});

  /// loss * scale, in f32 for a loss of halves.
  Tensor scale(const Tensor& loss) const;
  /// Divides the optimizer's gradients by the scale, in place. Throws ValueError if called twice
  /// before update() or after step(), and for f16 gradients (of f16 parameters), which would lose
  /// what the scale has kept.
  void unscale_(Optimizer& optimizer);
  /// unscale_ and tarn::optim::clip_grad_norm_ (of the optimizer's parameters, 2-norm) in one: the
  /// gradients are read once, for the norm and the search for overflows, and written once. Returns
  /// the norm of the unscaled gradients; where it is not finite they are left as they are, and
  /// step() will skip. Throws as unscale_.
  double clip_grad_norm_(Optimizer& optimizer, double max_norm);
  /// Steps with unscaled gradients and returns true; returns false, and changes nothing, if one is
  /// infinite or NaN. The gradients are divided while the optimizer reads them: no pass of its own,
  /// and they stay scaled. Throws ValueError if called twice before update().
  bool step(Optimizer& optimizer);
  /// Ends the step: moves the scale, or sets it. Throws ValueError unless step or unscale_ was
  /// called.
  void update(std::optional<double> new_scale = {});

  /// Where ranks step shards of one model, or different models, all must skip together: `agree`
  /// gets this rank's finding and returns whether any rank found an overflow. With gradients that
  /// are reduced over all ranks (DDP) it is not needed: they are equal everywhere.
  void set_agreement(std::function<bool(bool found)> agree) { agree_ = std::move(agree); }
  /// The same where clip_grad_norm_ is to clip by the norm over all ranks (NormAgreement, clip.h).
  void set_agreement(std::function<bool(bool found)> agree, NormAgreement norms) {
    agree_ = std::move(agree);
    norms_ = std::move(norms);
  }

  bool enabled() const { return options_.enabled; }
  double get_scale() const { return options_.enabled ? scale_ : 1; }
  /// Clean steps since the scale last changed.
  int64_t growth_tracker() const { return growth_tracker_; }

  /// PyTorch's names: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; and
  /// hysteresis, _hysteresis_tracker, min_scale. Empty when not enabled.
  TensorDict state_dict() const;
  /// Throws ValueError that names what is missing; then nothing was changed. PyTorch's own state
  /// lacks the last three: all of them may be missing, and then are GradScalerOptions' defaults.
  void load_state_dict(const TensorDict& dict);

 private:
  enum class Stage : uint8_t { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kReady;
    bool found = false;  // an infinity or NaN
  };

  detail::Gradients scaled_gradients(const char* op, const Optimizer& optimizer) const;
  bool find_overflow(const detail::Gradients& gradients) const;
  void shrink();
  void grow();

  GradScalerOptions options_;
  double scale_;
  int64_t growth_tracker_ = 0, hysteresis_tracker_;
  std::map<const Optimizer*, OptimizerState> states_;  // of this step
  std::function<bool(bool)> agree_;
  std::optional<NormAgreement> norms_;
};

}  // namespace tarn::optim
