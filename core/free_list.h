// free_list.h - per-thread recycling of small objects of one size.
//
// Tensor handles, storages and graph nodes come and go by the million; a thread-local list makes
// each cost a few nanoseconds. An object may be freed by another thread than the one that made it.
#pragma once

#include <cstddef>
#include <new>

namespace tarn::detail {

/// Hands out blocks of kSize bytes. Each thread keeps at most kKeep of them.
template <size_t kSize>
class FreeList {
 public:
  static void* take() {
    List& list = local();
    if (Node* node = list.head) {
      list.head = node->next;
      --list.count;
      return node;
    }
    return ::operator new(kSize);
  }
  static void give(void* block) noexcept {
    List& list = local();
    if (list.count >= kKeep) {
      ::operator delete(block);
      return;
    }
    list.head = new (block) Node{list.head};
    ++list.count;
  }

 private:
  static constexpr int kKeep = 1024;
  struct Node {
    Node* next;
  };
  // Trivially destructible on purpose: objects may still be freed while a thread's other
  // thread-locals are torn down. The drainer empties the list and closes it.
  struct List {
    Node* head;
    int count;
  };
  struct Drainer {
    ~Drainer() {
      while (Node* node = list().head) {
        list().head = node->next;
        ::operator delete(node);
      }
      list().count = kKeep;
    }
  };
  static List& list() {
    static thread_local List instance{nullptr, 0};
    return instance;
  }
  static List& local() {
    List& l = list();
    if (__builtin_expect(l.head == nullptr && l.count == 0, 0)) arm();
    return l;
  }
  [[gnu::noinline]] static void arm() {
    static thread_local Drainer drainer;
    (void)drainer;
  }
};

}  // namespace tarn::detail
