// unit_gather.h - UnitGather: parameters are whole only while the module that uses them computes.
//
// A unit is a module whose parameters come and go together. Its forward pre-hook gathers them, its
// forward hook gives their memory back. In backward a hook on the module's output gathers them
// again; they go when all their gradients are there, or, if they are frozen, when the gradient of
// the module's input is. The root unit, what belongs to no other, stays from the root's forward to
// the end of backward. What the tape keeps of a parameter is the storage, whose version is the same
// when its memory comes back.
//
// Where ranks use other units, backward must not gather: which unit it comes to, and when, is not
// the same on all of them. all_at_once gathers all of them when the root is called with gradients
// (or when backward begins, if they went meanwhile) and keeps them to the end of backward.
//
// Which unit follows which is remembered, so that the next is on its way while one computes. A
// wrong guess costs memory until the end of the pass. Every rank calls the same units in the same
// order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tarn/dist/flat_unit.h"
#include "tarn/nn/module.h"

namespace tarn::dist {

struct UnitGatherOptions {
  bool prefetch = true;      ///< gather the next unit while one computes
  bool all_at_once = false;  ///< ranks may use other units, also in forwards with gradients
};

/// Not thread-safe; modules are called, and backward runs, in the thread that owns it.
class UnitGather {
 public:
  struct Unit {
    nn::Module* module;
    std::vector<FlatUnit*> flats;
  };
  /// Hooks itself to the modules, of which the first is the root. They outlive it.
  UnitGather(std::vector<Unit> units, UnitGatherOptions options);
  ~UnitGather();
  UnitGather(const UnitGather&) = delete;
  UnitGather& operator=(const UnitGather&) = delete;

  /// The gradients of a flat unit are all there.
  void gradients_done(FlatUnit& flat);
  /// Gathers all units and keeps them until as many calls of let_go.
  void hold();
  /// Brings what was written to the parameters meanwhile to the shards.
  void let_go();
  bool held() const { return held_ > 0; }

 private:
  using Index = std::optional<size_t>;
  struct State {
    Unit unit;
    int64_t pre_hook = 0, hook = 0;
    Index next_forward = {}, next_backward = {};  // the unit that followed this one
    int in_backward = 0;                          // calls that backward is in
    bool frozen = false;                          // some of its parameters get no gradient
  };

  void before_forward(size_t index, const Tensor& x);
  void after_forward(size_t index, const Tensor& y);
  void before_backward(size_t index);
  void after_backward(size_t index);
  void end_backward();
  void gather(size_t index, Index next);
  void gather_all();
  void release(size_t index);
  static void release(FlatUnit& flat);
  bool is_root(const FlatUnit& flat) const;

  std::vector<State> units_;
  UnitGatherOptions options_;
  int held_ = 0;
  bool keeping_ = false;  // in a forward after which all units stay
  Index last_forward_, last_backward_;
  std::weak_ptr<int> pass_;  // lives as long as the backward under way
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);  // for hooks on tensors
};

}  // namespace tarn::dist
