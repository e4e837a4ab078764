// mutation.h - the switch that `mutate` puts at each place it breaks, and atomics that are none.
#pragma once

extern "C" {
extern int tarn_mutant_on;                   // the mutant of this run, or -1
extern unsigned char tarn_mutant_reached[];  // by mutant: the running test has come by
}

inline bool tarn_mutant(int n) {
  __atomic_store_n(&tarn_mutant_reached[n], 1, __ATOMIC_RELAXED);
  return __atomic_load_n(&tarn_mutant_on, __ATOMIC_RELAXED) == n;
}

#define TARN_PLAIN(name, update)   \
  template <class T, class V>      \
  T tarn_plain_##name(T* p, V v) { \
    const T old = *p;              \
    update;                        \
    return old;                    \
  }
TARN_PLAIN(Add, *p = old + v)
TARN_PLAIN(Max, if (old < v) * p = v)
TARN_PLAIN(Min, if (v < old) * p = v)
TARN_PLAIN(Or, *p = old | v)
TARN_PLAIN(And, *p = old & v)
TARN_PLAIN(Exch, *p = v)
#undef TARN_PLAIN

template <class T, class C, class V>
T tarn_plain_CAS(T* p, C expected, V v) {
  const T old = *p;
  if (old == T(expected)) *p = v;
  return old;
}
