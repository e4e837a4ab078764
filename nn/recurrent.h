// recurrent.h - RNN, LSTM and GRU: stacks of recurrent layers, and their cells.
//
// Tensors are [B, T, size] (PyTorch's batch_first = true); states are [layers * directions, B,
// hidden], of both directions of a layer the forward one first. Names of parameters, order of gates
// and initialisation (U(-b, b), b = 1 / sqrt(hidden)) are PyTorch's: weight_ih_l0 [gates * hidden,
// in], weight_hh_l0 [gates * hidden, hidden], bias_ih_l0, bias_hh_l0, and "_reverse" after each for
// the other direction.
#pragma once

#include "tarn/nn/module.h"

namespace tarn::nn {

struct RecurrentOptions {
  int64_t in = 0, hidden = 0;
  int64_t layers = 1;
  bool bias = true;
  double dropout = 0;  ///< of the outputs of every layer but the last, in training
  bool bidirectional = false;
  bool relu = false;  ///< RNN: relu in place of tanh
};

/// Where a recurrence stands. c: of LSTMs alone.
struct RecurrentState {
  Tensor h{}, c{};
};

struct RecurrentResult {
  Tensor output;         ///< [B, T, directions * hidden]: h of the last layer at every step
  RecurrentState state;  ///< after the last step, of every layer and direction
};

enum class Recurrence : uint8_t { kTanh, kRelu, kLstm, kGru };

/// What one direction of one layer, or a cell, learns. The names of its parameters end in suffix.
struct RecurrentWeights {
  RecurrentWeights(Module* owner, Recurrence kind, int64_t in, int64_t hidden, bool bias,
                   const std::string& suffix);
  Parameter weight_ih, weight_hh, bias_ih, bias_hh;
};

/// What the three have in common.
class Recurrent : public Module {
 public:
  using Options = RecurrentOptions;
  /// The output, from states of 0. Throws ShapeError unless x is [B, T, in] with T > 0.
  Tensor forward(const Tensor& x) override { return run(x).output; }
  /// From a given state (undefined: 0). Hooks are told of x and the output.
  ///
  /// lengths [B] (i64), of a padded batch: row b has lengths[b] steps, 0..T. Its outputs after them
  /// are 0, its state is that after its own last step, and the reverse direction begins there, as
  /// with torch's pack_padded_sequence. Throws ShapeError or ValueError on what does not fit.
  RecurrentResult run(const Tensor& x, const RecurrentState& state = {},
                      const Tensor& lengths = {});
  std::string details() const override;

 protected:
  Recurrent(Module* parent, std::string name, Recurrence kind, const Options& options);

 private:
  void check_input(const Tensor& x, const RecurrentState& state) const;
  size_t directions() const { return options_.bidirectional ? 2 : 1; }
  Tensor run_layers(const Tensor& x, std::vector<RecurrentState>& states,
                    const std::vector<Tensor>& runs) const;
  Tensor run_direction(const Tensor& x, size_t which, RecurrentState& state,
                       const std::vector<Tensor>& runs) const;
  Recurrence kind_;
  Options options_;
  std::vector<std::unique_ptr<RecurrentWeights>> weights_;
};

/// h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of it.
class RNN final : public Recurrent {
 public:
  explicit RNN(const Options& options) : RNN(nullptr, "", options) {}
  RNN(Module* parent, std::string name, const Options& options);
};

/// c' = f c + i g, h' = o tanh(c'), with i, f, o = sigmoid and g = tanh of the four parts (in the
/// order i, f, g, o) of W_ih x + b_ih + W_hh h + b_hh.
/// Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
class LSTM final : public Recurrent {
 public:
  explicit LSTM(const Options& options) : LSTM(nullptr, "", options) {}
  LSTM(Module* parent, std::string name, const Options& options);
};

/// h' = (1 - z) n + z h, with r, z = sigmoid of the first two parts of W_ih x + b_ih + W_hh h +
/// b_hh and n = tanh(W_in x + b_in + r (W_hn h + b_hn)). Source: Cho et al. 2014, arXiv:1406.1078.
class GRU final : public Recurrent {
 public:
  explicit GRU(const Options& options) : GRU(nullptr, "", options) {}
  GRU(Module* parent, std::string name, const Options& options);
};

struct RecurrentCellOptions {
  int64_t in = 0, hidden = 0;
  bool bias = true;
  bool relu = false;  ///< RNNCell: relu in place of tanh
};

/// One step: x [B, in], states [B, hidden]. Parameters: weight_ih, weight_hh, bias_ih, bias_hh.
class RecurrentCell : public Module {
 public:
  using Options = RecurrentCellOptions;
  /// h' from a state of 0.
  Tensor forward(const Tensor& x) override { return step(x).h; }
  /// The state after x (before it: undefined for 0). Hooks are told of x and h'.
  RecurrentState step(const Tensor& x, const RecurrentState& state = {});
  std::string details() const override;

 protected:
  RecurrentCell(Module* parent, std::string name, Recurrence kind, const Options& options);

 private:
  Recurrence kind_;
  Options options_;
  RecurrentWeights weights_;
};

class RNNCell final : public RecurrentCell {
 public:
  explicit RNNCell(const Options& options) : RNNCell(nullptr, "", options) {}
  RNNCell(Module* parent, std::string name, const Options& options);
};

class LSTMCell final : public RecurrentCell {
 public:
  explicit LSTMCell(const Options& options) : LSTMCell(nullptr, "", options) {}
  LSTMCell(Module* parent, std::string name, const Options& options);
};

class GRUCell final : public RecurrentCell {
 public:
  explicit GRUCell(const Options& options) : GRUCell(nullptr, "", options) {}
  GRUCell(Module* parent, std::string name, const Options& options);
};

}  // namespace tarn::nn
