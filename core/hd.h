// hd.h - TARN_HD marks code that runs on the host and, under nvcc, on the device as well.
#pragma once

#ifdef __CUDACC__
#define TARN_HD __host__ __device__ __forceinline__
#else
#define TARN_HD inline __attribute__((always_inline))
#endif
