// timing.h - what the benchmarks measure with (apps/common).
#pragma once

#include "tarn/apps/common/peak.h"
#include "tarn/apps/common/timing.h"

namespace tarn::bench {

using apps::measure_peak;
using apps::measure_read_gbps;
using apps::median;
using apps::now_s;
using apps::Peak;
using apps::time_call;

}  // namespace tarn::bench
