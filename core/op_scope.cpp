// op_scope.cpp - the list of listeners, and calling them.
#include "tarn/core/op_scope.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

namespace tarn {
namespace {

using Listeners = std::vector<OpListener*>;

// A change makes a new list, and frees the old one when nobody is in a call any more.
std::atomic<const Listeners*> current{nullptr};
std::atomic<int> callers{0};

std::mutex& change_mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

void replace(Listeners listeners) {
  const bool any = !listeners.empty();
  const Listeners* old = current.exchange(any ? new Listeners(std::move(listeners)) : nullptr);
  detail::op_listening.store(any);
  while (callers.load() != 0) std::this_thread::yield();
  delete old;
}

template <class F>
void tell(F&& call) noexcept {
  callers.fetch_add(1);
  if (const Listeners* listeners = current.load()) {
    for (OpListener* listener : *listeners) call(*listener);
  }
  callers.fetch_sub(1);
}

}  // namespace

std::atomic<bool> detail::op_listening{false};

void add_op_listener(OpListener* listener) {
  const std::lock_guard lock(change_mutex());
  const Listeners* now = current.load();
  Listeners next = now ? *now : Listeners();
  next.push_back(listener);
  replace(std::move(next));
}

void remove_op_listener(OpListener* listener) {
  const std::lock_guard lock(change_mutex());
  const Listeners* now = current.load();
  Listeners next = now ? *now : Listeners();
  std::erase(next, listener);
  replace(std::move(next));
}

void detail::tell_begin(const char* op, OpKind kind, uint64_t recorded) noexcept {
  tell([&](OpListener& l) { l.begin(op, kind, recorded); });
}
void detail::tell_end(const char* op) noexcept {
  tell([&](OpListener& l) { l.end(op); });
}
void detail::tell_kernel(const KernelWork& work) noexcept {
  tell([&](OpListener& l) { l.kernel(work); });
}
void detail::tell_memory(const void* ptr, int64_t bytes, Device device) noexcept {
  tell([&](OpListener& l) { l.memory(ptr, bytes, device); });
}
void detail::tell_recorded(const char* op, uint64_t number) noexcept {
  tell([&](OpListener& l) { l.recorded(op, number); });
}
void detail::tell_forgotten(const char* op, uint64_t number) noexcept {
  tell([&](OpListener& l) { l.forgotten(op, number); });
}

const char* detail::intern(std::string_view text) {
  static std::mutex& mutex = *new std::mutex;
  static auto& texts = *new std::unordered_set<std::string>;
  const std::lock_guard lock(mutex);
  return texts.emplace(text).first->c_str();
}

}  // namespace tarn
